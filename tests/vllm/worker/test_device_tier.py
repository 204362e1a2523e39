"""Copies on the device: what is staged comes from them, and they go with what they are copies of."""

import pytest
import torch

from cachecraft_rag.reuse import CaptureSpan, StagedSpan
from cachecraft_rag.store.device import DeviceTier
from cachecraft_rag.store.eviction import LeastRecentlyUsed
from cachecraft_rag.store.transfer import DirectTransfer

ROW = 2 * 2 * 1 * 4 * 4


@pytest.fixture
def worker(make_worker):
    """With room for ten tokens on the device."""

    memory = torch.zeros(10 * ROW, dtype=torch.uint8)
    transfer = DirectTransfer(torch.device("cpu"), torch.float32)
    return make_worker(tier=DeviceTier(memory, (2, 1, 4), torch.float32, transfer, LeastRecentlyUsed()))


def ask(worker, handle, tokens, compute=()):
    """Stage a piece at position 2, and compute the two before it."""
    plan = worker.message("a", [0, 1, *compute], end=2 + tokens, staged=[StagedSpan(handle, 0, 2, 2 + tokens, 0)])
    finished, report = worker.step([plan])
    assert finished == {"a"}
    return report.device


def test_the_first_use_makes_a_copy_and_the_next_reads_it(worker):
    worker.stored_piece(5, 6)
    device = ask(worker, 5, 6)
    assert (device.used_bytes, device.handles, device.hits) == (6 * ROW, (5,), 0)
    assert worker.cached(0, range(8)) == [100, 101, *range(500, 506)]
    worker.store.get(5).data.zero_()
    assert ask(worker, 5, 6).hits == 1
    assert worker.cached(0, range(8)) == [100, 101, *range(500, 506)]


def test_without_room_it_comes_from_memory(worker):
    worker.stored_piece(5, 11)
    assert ask(worker, 5, 11).handles == ()
    assert worker.cached(0, range(2, 13)) == [*range(500, 511)]


def test_a_freed_piece_loses_its_copy_before_anything_else_happens(worker):
    worker.stored_piece(5, 6)
    ask(worker, 5, 6)
    plan = worker.message("a", [0], end=6, staged=[StagedSpan(5, 0, 0, 6, 0)])
    _, report = worker.step([plan], freed=[5])
    assert report.device.handles == ()
    assert list(report.results["a", 1].missing) == [5]
    assert worker.cached(0, range(6)) == [100, 101, 102, 103, 104, 105]


def test_a_cancelled_plan_makes_no_copy(worker):
    worker.stored_piece(5, 6)
    plan = worker.message("a", [0, 1], end=8, staged=[StagedSpan(5, 0, 2, 8, 0)])
    _, report = worker.step([plan], cancelled=[("a", 1)])
    assert report.device.handles == ()


def test_what_is_computed_for_the_store_has_no_copy_until_it_is_used(worker):
    plan = worker.message("a", range(6), captures=[CaptureSpan(7, 0, 6)])
    _, report = worker.step([plan])
    assert report.stored == [7]
    assert report.device.handles == ()
