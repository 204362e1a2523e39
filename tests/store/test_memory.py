import pytest
import torch

from cachecraft_rag.store.memory import HostMemoryStore


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_are_those_of_its_tensors(dtype):
    store = HostMemoryStore(layers=3, kv_heads=2, head_size=4, dtype=dtype)
    piece = store.allocate(5)
    assert piece.key.shape == piece.value.shape == (3, 5, 2, 4)
    assert piece.key.dtype == dtype
    assert store.nbytes == 0
    store.put(7, piece)
    assert (len(store), store.nbytes) == (1, 2 * 3 * 5 * 2 * 4 * dtype.itemsize)
    assert store.get(7) is piece


def test_freeing_and_what_is_not_there():
    store = HostMemoryStore(1, 1, 1, torch.float32)
    store.put(1, store.allocate(2))
    store.free(1)
    store.free(1)
    store.free(99)
    assert store.get(1) is None
    assert (len(store), store.nbytes) == (0, 0)
