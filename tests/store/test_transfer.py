import torch
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.store.memory import HostMemoryStore
from cachecraft_rag.store.transfer import DirectTransfer, cut

sizes = st.integers(1, 30)


@given(sizes, sizes, st.integers(1, 200), st.one_of(st.none(), st.integers(1, 5000)), st.integers(0, 300))
def test_pieces_cover_all_once_and_keep_the_limit(layers, rows, row_bytes, limit, layer_bytes):
    seen = torch.zeros(layers, rows, dtype=torch.int64)
    for some, part in cut(layers, rows, row_bytes, limit, layer_bytes):
        of_layers, of_rows = some.stop - some.start, part.stop - part.start
        assert of_layers * of_rows > 0
        nbytes = of_layers * (of_rows * row_bytes + layer_bytes)
        assert limit is None or nbytes <= limit or of_layers == of_rows == 1
        seen[some, part] += 1
    assert torch.all(seen == 1)


@given(sizes, sizes, st.integers(1, 200))
def test_without_a_limit_or_with_a_large_one_there_is_one_piece(layers, rows, row_bytes):
    for limit in (None, layers * rows * row_bytes):
        assert list(cut(layers, rows, row_bytes, limit)) == [(slice(0, layers), slice(0, rows))]


def test_no_rows_are_no_pieces():
    assert list(cut(3, 0, 10, None)) == []


@given(st.integers(0, 9), st.integers(1, 10), st.sampled_from([None, 16, 64, 200, 4096]))
def test_what_arrives_is_what_was_stored(start, count, limit):
    store = HostMemoryStore(3, 2, 4, torch.float32)
    kv = store.allocate(20)
    kv.data.copy_(torch.arange(kv.data.numel(), dtype=torch.float32).view(kv.data.shape))
    arrived = torch.zeros(3, 2, count, 2, 4)
    for piece in DirectTransfer(torch.device("cpu"), torch.float32, limit).pieces(kv, slice(start, start + count)):
        arrived[piece.layers, 0, piece.rows] = piece.key
        arrived[piece.layers, 1, piece.rows] = piece.value
    assert torch.equal(arrived, kv.data[:, :, start : start + count])
