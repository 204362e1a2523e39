import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file

from cachecraft_rag.store.changes import DiskOrders, DiskReport, Read, Write
from cachecraft_rag.store.compression import FORMATS, dequantise, quantise
from cachecraft_rag.store.disk_io import DiskIo
from cachecraft_rag.store.memory import HostMemoryStore

SHAPE = (3, 2, 20, 2, 8)
TINY = torch.finfo(torch.float32).tiny


def numbers(dtype=torch.float32):
    """With channels that are much larger than the others, as K has them."""
    data = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    data[..., 2] *= 50
    data[..., 5] = 0.0
    return data.to(dtype)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_come_back_in_their_dtype_and_nothing_as_nothing(name, dtype):
    data = numbers(dtype)
    small, scales = quantise(data, FORMATS[name])
    assert (small.dtype, small.shape) == (FORMATS[name].dtype, SHAPE)
    assert (scales.dtype, scales.shape) == (torch.float32, (3, 2, 1, 2, 8))
    back = dequantise(small, scales, dtype)
    assert back.dtype == dtype
    assert torch.equal(back[..., 5], data[..., 5])


# Channels of all sizes that a float32 can tell apart, the smallest without a normal scale.
channels = arrays(np.float32, (2, 2, 5, 1, 3), elements=st.floats(-1.0, 1.0, width=32))
exponents = arrays(np.int64, (2, 2, 1, 1, 3), elements=st.integers(-149, 100))


@given(channels, exponents)
def test_int8_is_off_by_half_a_scale_at_most(values, powers):
    data = torch.from_numpy(np.ldexp(values, powers))
    small, scales = quantise(data, FORMATS["int8"])
    error = (dequantise(small, scales, torch.float32) - data).abs()
    assert torch.all(error <= data.abs().amax(dim=2, keepdim=True) / 254 * 1.001 + 127 * TINY)


@given(channels, exponents)
def test_fp8_is_off_by_a_sixteenth_at_most_and_among_small_numbers_by_less(values, powers):
    data = torch.from_numpy(np.ldexp(values, powers))
    small, scales = quantise(data, FORMATS["fp8"])
    error = (dequantise(small, scales, torch.float32) - data).abs()
    largest = data.abs().amax(dim=2, keepdim=True)
    assert torch.all(error <= torch.maximum(data.abs() / 16, largest / 448 * 2**-10) * 1.001 + 448 * TINY)


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_compressed_once_does_not_change_again(name):
    small, scales = quantise(numbers(), FORMATS[name])
    again, scales_again = quantise(dequantise(small, scales, torch.float32), FORMATS[name])
    assert torch.equal(small.float(), again.float())
    assert torch.allclose(scales, scales_again)


@pytest.mark.parametrize(("name", "error"), [("int8", 1 / 254), ("fp8", 1 / 28)])
def test_memory_keeps_a_quarter_and_gives_rows_back(name, error):
    store = HostMemoryStore(3, 2, 8, torch.float32, compress=name)
    kv = store.allocate(20)
    kv.data.copy_(numbers())
    store.put(1, kv)
    stored = store.get(1)
    assert store.nbytes == stored.nbytes == kv.nbytes // 4 + 3 * 2 * 2 * 8 * 4
    assert stored.tokens == 20
    key, value = stored.rows(slice(5, 9), torch.float32)
    assert key.shape == value.shape == (3, 4, 2, 8)
    for channel in range(8):
        largest = kv.data[..., channel].abs().amax()
        assert torch.allclose(key[..., channel], kv.key[:, 5:9, :, channel], rtol=0, atol=1.001 * error * largest)
        assert torch.allclose(value[..., channel], kv.value[:, 5:9, :, channel], rtol=0, atol=1.001 * error * largest)


@pytest.mark.parametrize(("name", "spelling"), [("int8", "I8"), ("fp8", "F8_E4M3")])
def test_it_goes_to_disk_and_comes_back_as_it_is(store, header, name, spelling):
    memory = HostMemoryStore(3, 2, 8, torch.float32, compress=name)
    kv = memory.allocate(20)
    kv.data.copy_(numbers())
    memory.put(1, kv)
    io = DiskIo(store, memory)
    io.begin(DiskOrders([], [Write(1, header("a", tokens=20))]))
    report = DiskReport()
    while not report.changed:
        io.collect(report, 1.0)
    io.begin(DiskOrders([Read(2, "a", 20)], []))
    while not report.loaded:
        io.collect(report, 1.0)
    io.close()
    assert [spec.dtype for spec in store.header("a").tensors] == [spelling, "F32"]
    assert torch.equal(memory.get(2).data.float(), memory.get(1).data.float())
    assert torch.equal(memory.get(2).scales, memory.get(1).scales)
    assert torch.equal(load_file(store.path("a"))["kv"].float(), memory.get(1).data.float())
