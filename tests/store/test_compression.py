import pytest
import torch

from cachecraft_rag.store.changes import DiskOrders, DiskReport, Read, Write
from cachecraft_rag.store.compression import dequantise, quantise
from cachecraft_rag.store.disk_io import DiskIo
from cachecraft_rag.store.memory import HostMemoryStore

SHAPE = (3, 2, 20, 2, 8)


def numbers(dtype=torch.float32):
    """With channels that are much larger than the others, as K has them."""
    data = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3))
    data[..., 2] *= 50
    data[..., 5] = 0.0
    return data.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_come_back_within_half_a_scale_of_their_channel(dtype):
    data = numbers(dtype)
    small, scales = quantise(data)
    assert (small.dtype, small.shape, scales.dtype, scales.shape) == (torch.int8, SHAPE, torch.float32, (3, 2, 1, 2, 8))
    back = dequantise(small, scales, dtype)
    assert back.dtype == dtype
    rounding = 0.0 if dtype == torch.float32 else data.float().abs().amax() * 2**-8
    assert torch.all((back.float() - data.float()).abs() <= scales * 0.5001 + rounding)
    assert torch.equal(back[..., 5], data[..., 5])


def test_what_was_compressed_once_does_not_change_again():
    small, scales = quantise(numbers())
    again, scales_again = quantise(dequantise(small, scales, torch.float32))
    assert torch.equal(small, again)
    assert torch.allclose(scales, scales_again)


def test_memory_keeps_a_quarter_and_gives_rows_back():
    store = HostMemoryStore(3, 2, 8, torch.float32, compress=True)
    kv = store.allocate(20)
    kv.data.copy_(numbers())
    store.put(1, kv)
    stored = store.get(1)
    assert store.nbytes == stored.nbytes == kv.nbytes // 4 + 3 * 2 * 2 * 8 * 4
    assert stored.tokens == 20
    key, value = stored.rows(slice(5, 9), torch.float32)
    assert key.shape == value.shape == (3, 4, 2, 8)
    assert torch.allclose(key, kv.key[:, 5:9], atol=2.0)
    assert torch.allclose(value[..., 0], kv.value[:, 5:9, :, 0], atol=0.02)


def test_it_goes_to_disk_and_comes_back_as_it_is(store, header):
    memory = HostMemoryStore(3, 2, 8, torch.float32, compress=True)
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
    assert [spec.dtype for spec in store.header("a").tensors] == ["I8", "F32"]
    assert torch.equal(memory.get(2).data, memory.get(1).data)
    assert torch.equal(memory.get(2).scales, memory.get(1).scales)
