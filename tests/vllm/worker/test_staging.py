"""What is stored is written into a request's blocks; what is lost is computed."""

from functools import partial

import numpy as np
import pytest
import torch

from cachecraft_rag.reuse import Plan, StagedSpan
from cachecraft_rag.store.transfer import DirectTransfer
from cachecraft_rag.vllm import staging
from cachecraft_rag.vllm.protocol import PlanMessage


def test_staged_rows_are_written_before_the_first_slice_and_recomputed_ones_over_them(worker):
    worker.stored_piece(5, 6)
    staged = [StagedSpan(5, source_start=1, start=3, stop=8, delta=0)]
    worker.run_all(worker.message("a", [0, 1, 2, 3, 8], staged=staged))
    assert worker.forward.slices == [[[0, 1, 2, 3, 8]]]
    assert worker.cached(0, range(9)) == [100, 101, 102, 103, 502, 503, 504, 505, 108]
    assert worker.cached(0, range(9), layer=1) == [100, 101, 102, 103, 502, 503, 504, 505, 108]


def test_a_plan_with_nothing_to_compute_is_staged_and_ends(worker):
    worker.stored_piece(5, 6)
    results, _ = worker.run_all(
        worker.message("a", [], end=6, staged=[StagedSpan(5, 0, 0, 6, 0)]), worker.message("b", [], end=0)
    )
    assert worker.forward.slices == []
    assert results["a", 1].computed_tokens == 0
    assert worker.cached(0, range(6)) == [500, 501, 502, 503, 504, 505]
    assert ("b", 1) in results


@pytest.mark.parametrize("lost", ["never there", "freed", "too short"])
def test_what_is_lost_is_computed_and_named(worker, lost):
    if lost == "freed":
        worker.stored_piece(5, 6)
        worker.step(freed=[5])
    elif lost == "too short":
        worker.stored_piece(5, 4)
    staged = [StagedSpan(5, 0, 2, 8, delta=0)]
    results, _ = worker.run_all(worker.message("a", [0, 1, 3], end=8, staged=staged))
    assert list(results["a", 1].missing) == [5]
    assert results["a", 1].computed_tokens == 8
    assert worker.cached(0, range(8)) == [100.0 + n for n in range(8)]


def test_one_of_two_is_lost(worker):
    worker.stored_piece(5, 3)
    staged = [StagedSpan(5, 0, 0, 3, 0), StagedSpan(9, 0, 3, 6, 0)]
    results, _ = worker.run_all(worker.message("a", [], end=6, staged=staged))
    assert list(results["a", 1].missing) == [9]
    assert worker.forward.slices == [[[3, 4, 5]]]
    assert worker.cached(0, range(6)) == [500, 501, 502, 103, 104, 105]


def test_freed_handles_come_before_new_plans(worker):
    worker.stored_piece(5, 4)
    _, report = worker.step([worker.message("a", [], end=4, staged=[StagedSpan(5, 0, 0, 4, 0)])], freed=[5])
    assert list(report.results["a", 1].missing) == [5]


def test_blocks_below_the_plan_are_left_alone(worker):
    """They belong to vLLM's prefix cache and may be shared."""
    worker.stored_piece(5, 8)
    plan = Plan(4, 10, np.array([8, 9]), (StagedSpan(5, 2, 4, 8, 0),), ())
    blocks = np.array([3, 1, 2])
    worker.run_all(PlanMessage(("a", 1), plan, np.arange(100, 110), blocks))
    assert worker.cached(3, range(4)) == [-1.0] * 4
    assert worker.cached(1, range(4)) == [502, 503, 504, 505]
    assert worker.cached(2, range(4)) == [108, 109, -1, -1]


def test_stored_keys_are_never_turned_in_place(worker, monkeypatch):
    worker.stored_piece(5, 4)
    spec = object()
    worker.half._stager._rotary = [spec, spec]
    seen = []

    def rotate(key, given, delta):
        seen.append((tuple(key.shape), given is spec, delta))
        return key + 0

    monkeypatch.setattr(staging, "rotate", rotate)
    before = worker.store.get(5).key.clone()
    worker.run_all(worker.message("a", [], end=9, staged=[StagedSpan(5, 0, 5, 9, delta=5)]))
    assert seen == [((2, 4, 1, 4), True, 5)]
    assert torch.equal(worker.store.get(5).key, before)


def test_layers_without_rotation_are_left_alone(worker, monkeypatch):
    worker.stored_piece(5, 4)
    worker.half._stager._rotary = [None, object()]
    monkeypatch.setattr(staging, "rotate", lambda key, spec, delta: key + delta)
    monkeypatch.setattr(worker.forward, "write", lambda layer, key, value, slots: rows.append((layer, key[0, 0, 0])))
    rows = []
    worker.run_all(worker.message("a", [], end=9, staged=[StagedSpan(5, 0, 5, 9, delta=5)]))
    assert [(layer, float(key)) for layer, key in rows] == [(0, 500.0), (1, 505.0)]


@pytest.mark.parametrize("piece_bytes", [32, 100, 200, 10_000])
def test_pieces_of_any_size_come_to_the_same(make_worker, monkeypatch, piece_bytes):
    worker = make_worker(transfer=DirectTransfer(torch.device("cpu"), torch.float32, piece_bytes))
    worker.stored_piece(5, 6)
    monkeypatch.setattr(staging, "rotate", lambda key, spec, delta: key + spec)
    monkeypatch.setattr(worker.forward, "write", partial(note, worker.forward))
    worker.half._stager._rotary = [None, 7.0]
    worker.run_all(worker.message("a", [0, 1, 8], staged=[StagedSpan(5, 1, 3, 8, 1)]))
    assert worker.cached(0, range(3, 8)) == [*range(501, 506)]
    assert worker.cached(0, range(3, 8), layer=1) == [*range(508, 513)]


def note(forward, layer, key, value, slot_mapping):
    """What was written as K; here it is not equal to V."""
    forward.cache[layer, slot_mapping] = key[:, 0, 0]


@pytest.mark.parametrize(("compress", "error"), [("int8", 505 / 254), ("fp8", 505 / 16)])
def test_compressed_kv_is_staged_as_numbers(make_worker, compress, error):
    worker = make_worker(compress=compress)
    worker.stored_piece(5, 6)
    worker.run_all(worker.message("a", [0, 1, 8], staged=[StagedSpan(5, 0, 2, 8, 0)]))
    assert worker.cached(0, range(9)) == pytest.approx([100, 101, *range(500, 506), 108], abs=error)
