"""The ring on a lane that knows what has surely happened: a buffer must not be written any sooner."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecraft_rag.store.memory import HostMemoryStore
from cachecraft_rag.store.ring import CudaLane, RingTransfer, Slot

LAYERS, HEADS, SIZE = 5, 2, 4
TOKENS = 24


class LateLane:
    """Copies when somebody waits for it and not before. Fails where a buffer is written that may still be read.

    The host knows of a copy's end only what it waited for, and the copies know only what they waited for of its use.
    """

    def __init__(self):
        self.begun = []
        self.done = 0
        self.finished = 0
        self.uses = 0
        self.waited = 0
        self.read_until = {}  # device buffer to the mark behind its last use, None while it is in use

    def copy(self, target, source):
        read_by = [number for number, (_, other) in enumerate(self.begun, 1) if other.data_ptr() == source.data_ptr()]
        assert max(read_by, default=0) <= self.finished, "written before its last copy was over"
        buffer = target.data_ptr()
        if buffer in self.read_until:
            assert self.read_until[buffer] is not None, "written while it is read"
            assert self.read_until[buffer] <= self.waited, "written without waiting for its last use"
        self.begun.append((target, source))
        return len(self.begun)

    def wait_for_use(self, mark):
        self.waited = max(self.waited, mark)

    def used(self):
        self.uses += 1
        self.read_until = {buffer: self.uses if mark is None else mark for buffer, mark in self.read_until.items()}
        return self.uses

    def need(self, mark):
        self._catch_up(mark)
        self.read_until[self.begun[mark - 1][0].data_ptr()] = None

    def finish(self, mark):
        self._catch_up(mark)
        self.finished = max(self.finished, mark)

    def _catch_up(self, mark):
        while self.done < mark:
            target, source = self.begun[self.done]
            target.copy_(source)
            self.done += 1


def slots(nbytes, count=2, device="cpu", pinned=False):
    host = [torch.zeros(nbytes, dtype=torch.uint8, pin_memory=pinned) for _ in range(count)]
    return [Slot(one, torch.zeros(nbytes, dtype=torch.uint8, device=device)) for one in host]


def stored(dtype, compress=None, seed=0):
    store = HostMemoryStore(LAYERS, HEADS, SIZE, dtype, compress=compress)
    kv = store.allocate(TOKENS)
    kv.data.copy_(torch.randn(kv.data.shape, generator=torch.Generator().manual_seed(seed)))
    store.put(1, kv)
    return store.get(1)


def collect(transfer, kv, rows):
    """What arrives, put together; a piece must be whole when the next one has not been asked for."""
    arrived = torch.full((2, LAYERS, rows.stop - rows.start, HEADS, SIZE), torch.nan)
    count = 0
    for piece in transfer.pieces(kv, rows):
        arrived[0][piece.layers, piece.rows] = piece.key.float().cpu()
        arrived[1][piece.layers, piece.rows] = piece.value.float().cpu()
        count += 1
    return arrived, count


def expected(kv, rows, dtype):
    return torch.stack([half.float() for half in kv.rows(rows, dtype)])


@pytest.mark.parametrize("compress", [None, "int8", "fp8"])
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, TOKENS - 1), st.integers(1, TOKENS), st.integers(0, 3)), min_size=1, max_size=6),
    st.sampled_from([800, 1500, 5000, 100_000]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.integers(1, 3),
)
def test_what_arrives_is_what_was_stored_whatever_the_buffers(compress, asked, nbytes, dtype, count):
    transfer = RingTransfer(slots(nbytes, count), dtype, LateLane())
    for start, length, seed in asked:
        kv = stored(dtype, compress, seed)
        rows = slice(start, min(start + length, TOKENS))
        arrived, _ = collect(transfer, kv, rows)
        assert torch.equal(arrived, expected(kv, rows, dtype))


def test_small_buffers_make_pieces_and_large_ones_do_not():
    kv = stored(torch.float32)
    for nbytes, pieces in ((kv.nbytes + 256, 1), (kv.nbytes // 2 + 256, 3), (500, 40)):
        _, count = collect(RingTransfer(slots(nbytes), torch.float32, LateLane()), kv, slice(0, TOKENS))
        assert count == pieces


def test_a_piece_that_is_given_up_leaves_the_ring_in_order():
    kv = stored(torch.float32)
    transfer = RingTransfer(slots(800), torch.float32, LateLane())
    for _ in range(5):
        pieces = transfer.pieces(kv, slice(0, TOKENS))
        next(pieces)
        pieces.close()
    arrived, _ = collect(transfer, kv, slice(0, TOKENS))
    assert torch.equal(arrived, expected(kv, slice(0, TOKENS), torch.float32))


def test_the_copy_of_a_piece_is_begun_before_the_last_one_was_used_up():
    """With two buffers the bus need not wait for the computations of the piece before."""
    lane = LateLane()
    pieces = RingTransfer(slots(800), torch.float32, lane).pieces(stored(torch.float32), slice(0, TOKENS))
    next(pieces)
    next(pieces)
    assert (lane.uses, lane.waited, len(lane.begun)) == (1, 0, 2)
    next(pieces)
    assert (lane.uses, lane.waited) == (2, 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("compress", [None, "int8", "fp8"])
def test_on_a_card_what_arrives_is_what_was_stored(compress):
    device = torch.device("cuda:0")
    transfer = RingTransfer(slots(1500, device=device, pinned=True), torch.bfloat16, CudaLane(device))
    for seed in range(50):
        kv = stored(torch.bfloat16, compress, seed)
        arrived, _ = collect(transfer, kv, slice(0, TOKENS))
        assert torch.equal(arrived, expected(kv, slice(0, TOKENS), torch.bfloat16))
