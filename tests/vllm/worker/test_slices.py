"""Plans in slices: what runs when, what is captured, how a plan ends."""

import torch

from cachecraft_rag.reuse import CaptureSpan


def test_a_plan_runs_in_slices_and_ends_once(worker):
    results, _ = worker.run_all(worker.message("a", range(20)))
    assert worker.forward.slices == [[list(range(8))], [list(range(8, 16))], [list(range(16, 20))]]
    result = results["a", 1]
    assert (result.slices, result.computed_tokens, result.missing, result.cancelled) == (3, 20, {}, False)
    assert worker.cached(0, range(20)) == [100.0 + n for n in range(20)]


def test_plans_share_a_slice_in_the_order_they_came(worker):
    results, _ = worker.run_all(
        worker.message("a", range(3)), worker.message("b", range(4), block=8), worker.message("c", range(6), block=16)
    )
    assert worker.forward.slices == [[[0, 1, 2], [0, 1, 2, 3], [0]], [[1, 2, 3, 4, 5]]]
    assert [results[name, 1].slices for name in "abc"] == [1, 1, 2]
    assert worker.cached(8, range(4)) == [100.0, 101.0, 102.0, 103.0]


def test_a_slice_has_no_more_runs_than_allowed(worker):
    worker.run_all(worker.message("a", [0, 2, 4, 6, 7, 9]), worker.message("b", [0, 1], block=8))
    assert worker.forward.slices == [[[0, 2, 4]], [[6, 7, 9], [0, 1]]]


def test_captured_rows_are_stored_whole_over_slices_and_plans(worker):
    first = worker.message("a", range(15), captures=[CaptureSpan(5, 2, 12), CaptureSpan(6, 12, 14)])
    second = worker.message("b", range(5), block=8, first_id=300, captures=[CaptureSpan(7, 1, 4)])
    _, stored = worker.run_all(first, second)
    assert sorted(stored) == [5, 6, 7]
    for handle, ids in ((5, range(102, 112)), (6, range(112, 114)), (7, range(301, 304))):
        kv = worker.store.get(handle)
        assert kv.key.shape == (worker.shape[0], len(ids), *worker.shape[1:])
        for layer in range(worker.shape[0]):
            assert kv.key[layer, :, 0, 0].tolist() == [float(i) for i in ids]
            assert torch.equal(kv.key, kv.value)


def test_nothing_is_stored_before_all_of_it_is_computed(worker):
    _, report = worker.step([worker.message("a", range(12), captures=[CaptureSpan(5, 0, 12)])])
    assert report is None
    assert worker.store.get(5) is None
    _, report = worker.step()
    assert report.stored == [5]
    assert report.store_bytes == worker.store.nbytes > 0


def test_a_cancelled_plan_ends_once_and_writes_nothing_more(worker):
    worker.step([worker.message("a", range(30), captures=[CaptureSpan(5, 0, 30)])])
    finished, report = worker.step(cancelled=[("a", 1)])
    assert finished == {"a"}
    assert report.results["a", 1].cancelled
    assert report.results["a", 1].computed_tokens == 8
    assert worker.step() == (set(), None)
    assert worker.cached(0, range(8, 30)) == [-1.0] * 22
    assert len(worker.store) == 0


def test_a_cancellation_of_what_has_ended_or_never_came_is_ignored(worker):
    worker.run_all(worker.message("a", range(3)))
    assert worker.step(cancelled=[("a", 1), ("z", 1)]) == (set(), None)


def test_others_go_on_when_one_is_cancelled(worker):
    worker.step([worker.message("a", range(12)), worker.message("b", range(5), block=8)])
    finished, report = worker.step(cancelled=[("a", 1)])
    assert finished == {"a", "b"}
    assert report.results["a", 1].cancelled
    assert not report.results["b", 1].cancelled
    assert worker.cached(8, range(5)) == [100.0 + n for n in range(5)]


def test_freed_tensors_are_gone_and_counted(worker):
    worker.stored_piece(5, 6)
    before = worker.store.nbytes
    _, report = worker.step(freed=[5, 77])
    assert report.store_bytes == 0 < before
    assert worker.step() == (set(), None)


def test_close_drops_what_is_queued(worker):
    worker.step([worker.message("a", range(30))])
    worker.half.close()
    assert worker.forward.closed
    assert worker.step() == (set(), None)
