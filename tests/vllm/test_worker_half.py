"""The worker half with a forward that only notes what it was asked to do."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cachecraft_rag.reuse import CaptureSpan, Plan, StagedSpan
from cachecraft_rag.reuse.plan import PendingChoice
from cachecraft_rag.reuse.policies import RepairableChunk
from cachecraft_rag.store.changes import DiskOrders, Read, Remove, Write
from cachecraft_rag.store.directory import StoreDirectory
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.header import EntryHeader
from cachecraft_rag.vllm import staging
from cachecraft_rag.vllm import worker_half as module
from cachecraft_rag.vllm.capture import Recorder
from cachecraft_rag.vllm.forward import slots as slots_of
from cachecraft_rag.vllm.protocol import ConnectorMetadata, PlanMessage
from cachecraft_rag.vllm.worker_half import WorkerHalf

LAYERS, HEADS, SIZE, BLOCK = 2, 1, 4, 4
MAX_ROWS, MAX_RUNS = 8, 3


class FakeForward:
    """Keeps a paged cache of its own. The K and V that it "computes" for a token are its id."""

    def __init__(self, *_):
        self.layers = [SimpleNamespace(impl=SimpleNamespace(scale=0.01)) for _ in range(LAYERS)]
        self.layer_names = tuple(f"layers.{n}.attn" for n in range(LAYERS))
        self.block_size = BLOCK
        self.recorder = Recorder()
        self.cache = torch.full((LAYERS, 64 * BLOCK), -1.0)
        self.slices = []
        self.places = []
        self.closed = False

    def to_device(self, array, dtype=torch.int64):
        return torch.from_numpy(array).to(dtype)

    def write(self, layer, key, value, slot_mapping):
        assert key.shape == (len(slot_mapping), HEADS, SIZE)
        assert torch.equal(key, value)
        self.cache[layer, slot_mapping] = key[:, 0, 0]

    def run(self, parts):
        self.slices.append([part.positions.tolist() for part in parts])
        self.places.append([part.placed.tolist() for part in parts])
        ids = torch.from_numpy(np.concatenate([part.token_ids for part in parts])).float()
        rows = ids[:, None, None].expand(-1, HEADS, SIZE)
        slots = torch.from_numpy(np.concatenate([slots_of(part.placed, part.block_ids, BLOCK) for part in parts]))
        for layer in range(LAYERS):
            self.recorder.record(layer, rows, rows)
            self.recorder.record_query(layer, rows)
            self.cache[layer, slots] = ids

    def close(self):
        self.closed = True


@pytest.fixture
def make_worker(monkeypatch):
    monkeypatch.setattr(module, "SelectiveForward", FakeForward)
    monkeypatch.setattr(module, "rotary_specs", lambda model, names: [None] * LAYERS)
    monkeypatch.setattr(module, "max_runs_per_slice", lambda config, layer: MAX_RUNS)
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=MAX_ROWS))
    spec = SimpleNamespace(num_kv_heads=HEADS, head_size=SIZE, dtype=torch.float32)
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
    return lambda disk=None, **options: WorkerHalf(config, cache, None, torch.device("cpu"), disk, **options)


@pytest.fixture
def worker(make_worker):
    return make_worker()


def message(name, compute, *, end=None, staged=(), captures=(), block=0, first_id=100):
    compute = np.array(sorted(compute), dtype=np.int64)
    end = int(compute[-1]) + 1 if end is None else end
    plan = Plan(0, end, compute, tuple(staged), tuple(captures))
    blocks = np.arange(block, block + -(-end // BLOCK), dtype=np.int64)
    return PlanMessage((name, 1), plan, np.arange(first_id, first_id + end, dtype=np.int64), blocks)


def step(worker, plans=(), cancelled=(), freed=()):
    worker.step(ConnectorMetadata(list(freed), list(cancelled), list(plans)))
    return worker.take_finished(), worker.take_report()


def run_all(worker, *plans):
    ended, results, stored = [], {}, []
    finished, report = step(worker, plans)
    for _ in range(50):
        ended += finished
        if report is not None:
            assert not results.keys() & report.results.keys(), "a plan ended twice"
            results |= report.results
            stored += report.stored
        finished, report = step(worker)
        if not worker._queue and not finished and report is None:
            break
    assert sorted(ended) == sorted(plan_id[0] for plan_id in results)
    return results, stored


def cached(worker, block, positions, layer=0):
    return [float(worker._forward.cache[layer, block * BLOCK + position]) for position in positions]


def test_a_plan_runs_in_slices_and_ends_once(worker):
    results, _ = run_all(worker, message("a", range(20)))
    assert worker._forward.slices == [[list(range(8))], [list(range(8, 16))], [list(range(16, 20))]]
    result = results["a", 1]
    assert (result.slices, result.computed_tokens, result.missing, result.cancelled) == (3, 20, {}, False)
    assert cached(worker, 0, range(20)) == [100.0 + n for n in range(20)]


def test_plans_share_a_slice_in_the_order_they_came(worker):
    results, _ = run_all(
        worker, message("a", range(3)), message("b", range(4), block=8), message("c", range(6), block=16)
    )
    assert worker._forward.slices == [[[0, 1, 2], [0, 1, 2, 3], [0]], [[1, 2, 3, 4, 5]]]
    assert [results[name, 1].slices for name in "abc"] == [1, 1, 2]
    assert cached(worker, 8, range(4)) == [100.0, 101.0, 102.0, 103.0]


def test_a_slice_has_no_more_runs_than_allowed(worker):
    run_all(worker, message("a", [0, 2, 4, 6, 7, 9]), message("b", [0, 1], block=8))
    assert worker._forward.slices == [[[0, 2, 4]], [[6, 7, 9], [0, 1]]]


def test_captured_rows_are_stored_whole_over_slices_and_plans(worker):
    first = message("a", range(15), captures=[CaptureSpan(5, 2, 12), CaptureSpan(6, 12, 14)])
    second = message("b", range(5), block=8, first_id=300, captures=[CaptureSpan(7, 1, 4)])
    _, stored = run_all(worker, first, second)
    assert sorted(stored) == [5, 6, 7]
    for handle, ids in ((5, range(102, 112)), (6, range(112, 114)), (7, range(301, 304))):
        kv = worker._store.get(handle)
        assert kv.key.shape == (LAYERS, len(ids), HEADS, SIZE)
        for layer in range(LAYERS):
            assert kv.key[layer, :, 0, 0].tolist() == [float(i) for i in ids]
            assert torch.equal(kv.key, kv.value)


def test_nothing_is_stored_before_all_of_it_is_computed(worker):
    _, report = step(worker, [message("a", range(12), captures=[CaptureSpan(5, 0, 12)])])
    assert report is None
    assert worker._store.get(5) is None
    _, report = step(worker)
    assert report.stored == [5]
    assert report.store_bytes == worker._store.nbytes > 0


def stored_piece(worker, handle, tokens, first_id=500):
    plan = message("prewarm", range(tokens), captures=[CaptureSpan(handle, 0, tokens)], block=40, first_id=first_id)
    run_all(worker, plan)
    worker._forward.slices.clear()
    worker._forward.places.clear()


def test_staged_rows_are_written_before_the_first_slice_and_recomputed_ones_over_them(worker):
    stored_piece(worker, 5, 6)
    staged = [StagedSpan(5, source_start=1, start=3, stop=8, delta=0)]
    run_all(worker, message("a", [0, 1, 2, 3, 8], staged=staged))
    assert worker._forward.slices == [[[0, 1, 2, 3, 8]]]
    assert cached(worker, 0, range(9)) == [100, 101, 102, 103, 502, 503, 504, 505, 108]
    assert cached(worker, 0, range(9), layer=1) == [100, 101, 102, 103, 502, 503, 504, 505, 108]


def test_a_plan_with_nothing_to_compute_is_staged_and_ends(worker):
    stored_piece(worker, 5, 6)
    results, _ = run_all(worker, message("a", [], end=6, staged=[StagedSpan(5, 0, 0, 6, 0)]), message("b", [], end=0))
    assert worker._forward.slices == []
    assert results["a", 1].computed_tokens == 0
    assert cached(worker, 0, range(6)) == [500, 501, 502, 503, 504, 505]
    assert ("b", 1) in results


@pytest.mark.parametrize("lost", ["never there", "freed", "too short"])
def test_what_is_lost_is_computed_and_named(worker, lost):
    if lost == "freed":
        stored_piece(worker, 5, 6)
        step(worker, freed=[5])
    elif lost == "too short":
        stored_piece(worker, 5, 4)
    staged = [StagedSpan(5, 0, 2, 8, delta=0)]
    results, _ = run_all(worker, message("a", [0, 1, 3], end=8, staged=staged))
    assert list(results["a", 1].missing) == [5]
    assert results["a", 1].computed_tokens == 8
    assert cached(worker, 0, range(8)) == [100.0 + n for n in range(8)]


def test_one_of_two_is_lost(worker):
    stored_piece(worker, 5, 3)
    staged = [StagedSpan(5, 0, 0, 3, 0), StagedSpan(9, 0, 3, 6, 0)]
    results, _ = run_all(worker, message("a", [], end=6, staged=staged))
    assert list(results["a", 1].missing) == [9]
    assert worker._forward.slices == [[[3, 4, 5]]]
    assert cached(worker, 0, range(6)) == [500, 501, 502, 103, 104, 105]


def test_a_cancelled_plan_ends_once_and_writes_nothing_more(worker):
    step(worker, [message("a", range(30), captures=[CaptureSpan(5, 0, 30)])])
    finished, report = step(worker, cancelled=[("a", 1)])
    assert finished == {"a"}
    assert report.results["a", 1].cancelled
    assert report.results["a", 1].computed_tokens == 8
    assert step(worker) == (set(), None)
    assert cached(worker, 0, range(8, 30)) == [-1.0] * 22
    assert len(worker._store) == 0


def test_a_cancellation_of_what_has_ended_or_never_came_is_ignored(worker):
    run_all(worker, message("a", range(3)))
    assert step(worker, cancelled=[("a", 1), ("z", 1)]) == (set(), None)


def test_others_go_on_when_one_is_cancelled(worker):
    step(worker, [message("a", range(12)), message("b", range(5), block=8)])
    finished, report = step(worker, cancelled=[("a", 1)])
    assert finished == {"a", "b"}
    assert report.results["a", 1].cancelled
    assert not report.results["b", 1].cancelled
    assert cached(worker, 8, range(5)) == [100.0 + n for n in range(5)]


def test_freed_tensors_are_gone_and_counted(worker):
    stored_piece(worker, 5, 6)
    before = worker._store.nbytes
    _, report = step(worker, freed=[5, 77])
    assert report.store_bytes == 0 < before
    assert step(worker) == (set(), None)


def test_freed_handles_come_before_new_plans(worker):
    stored_piece(worker, 5, 4)
    _, report = step(worker, [message("a", [], end=4, staged=[StagedSpan(5, 0, 0, 4, 0)])], freed=[5])
    assert list(report.results["a", 1].missing) == [5]


def test_blocks_below_the_plan_are_left_alone(worker):
    """They belong to vLLM's prefix cache and may be shared."""
    stored_piece(worker, 5, 8)
    plan = Plan(4, 10, np.array([8, 9]), (StagedSpan(5, 2, 4, 8, 0),), ())
    blocks = np.array([3, 1, 2])
    run_all(worker, PlanMessage(("a", 1), plan, np.arange(100, 110), blocks))
    assert cached(worker, 3, range(4)) == [-1.0] * 4
    assert cached(worker, 1, range(4)) == [502, 503, 504, 505]
    assert cached(worker, 2, range(4)) == [108, 109, -1, -1]


def test_stored_keys_are_never_turned_in_place(worker, monkeypatch):
    stored_piece(worker, 5, 4)
    spec = object()
    worker._stager._rotary = [spec, spec]
    seen = []

    def rotate(key, given, delta):
        seen.append((tuple(key.shape), given is spec, delta))
        return key + 0

    monkeypatch.setattr(staging, "rotate", rotate)
    before = worker._store.get(5).key.clone()
    run_all(worker, message("a", [], end=9, staged=[StagedSpan(5, 0, 5, 9, delta=5)]))
    assert seen == [((LAYERS, 4, HEADS, SIZE), True, 5)]
    assert torch.equal(worker._store.get(5).key, before)


def test_layers_without_rotation_are_left_alone(worker, monkeypatch):
    stored_piece(worker, 5, 4)
    worker._stager._rotary = [None, object()]
    monkeypatch.setattr(staging, "rotate", lambda key, spec, delta: key + delta)
    monkeypatch.setattr(worker._forward, "write", lambda layer, key, value, slots: rows.append((layer, key[0, 0, 0])))
    rows = []
    run_all(worker, message("a", [], end=9, staged=[StagedSpan(5, 0, 5, 9, delta=5)]))
    assert [(layer, float(key)) for layer, key in rows] == [(0, 500.0), (1, 505.0)]


def test_close_drops_what_is_queued(worker):
    step(worker, [message("a", range(30))])
    worker.close()
    assert worker._forward.closed
    assert step(worker) == (set(), None)


def ask(worker, monkeypatch, staged, compute, *, end, chunks, ratio=0.2, lower=0):
    """Run a plan whose choice waits for the question in its last two rows."""
    monkeypatch.setattr("cachecraft_rag.vllm.question.tensor_parallel_mean", lambda values: values)
    plan = message("q", compute, end=end, staged=staged)
    rows = np.arange(end - 2, end)
    question = PendingChoice("question", ratio, 1, rows, np.empty(0, np.int64), tuple(staged), tuple(chunks))
    asked = replace(plan, plan=replace(plan.plan, pending=question, num_computed_tokens=lower))
    results, _ = run_all(worker, asked)
    return results["q", 1]


def test_the_question_runs_first_and_its_attention_chooses(worker, monkeypatch):
    stored_piece(worker, 1, 8, first_id=1)  # the larger an id, the more it is attended to
    span = StagedSpan(1, 0, 0, 8, 0)
    result = ask(worker, monkeypatch, [span], [8, 9], end=10, chunks=[RepairableChunk("00", 0, 8)], ratio=0.7)
    assert worker._forward.slices == [[[8, 9]], [[0, 1, 2, 3, 6, 7, 8, 9]]]
    assert worker._forward.places[0] == [[8, 9]]
    assert result.chosen.tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert (result.computed_tokens, result.slices) == (8, 2)
    assert result.selection_tokens == 2 * 1 / LAYERS  # two rows, through the first layer


def test_gaps_are_closed_for_the_pass_and_opened_again(worker, monkeypatch):
    stored_piece(worker, 1, 4, first_id=1)
    stored_piece(worker, 2, 4, first_id=5)
    spans = [StagedSpan(1, 0, 0, 4, 0), StagedSpan(2, 0, 6, 10, 0)]  # 4 and 5 are a miss
    chunks = [RepairableChunk("00", 0, 4), RepairableChunk("11", 6, 10)]
    ask(worker, monkeypatch, spans, [4, 5, 10, 11], end=12, chunks=chunks, ratio=0.1)
    assert worker._forward.places[0] == [[8, 9]]
    assert worker._forward.slices[1:] == [[[0, 4, 5, 10, 11]]]
    assert cached(worker, 0, range(12)) == [100, 2, 3, 4, 104, 105, 5, 6, 7, 8, 110, 111]


def test_what_is_lost_takes_no_part_in_the_choice(worker, monkeypatch):
    stored_piece(worker, 1, 4, first_id=1)
    spans = [StagedSpan(1, 0, 0, 4, 0), StagedSpan(2, 0, 4, 8, 0)]
    chunks = [RepairableChunk("00", 0, 4), RepairableChunk("11", 4, 8)]
    result = ask(worker, monkeypatch, spans, [8, 9], end=10, chunks=chunks, ratio=0.1)
    assert set(result.missing) == {2}
    assert worker._forward.places[0] == [[4, 5]]
    assert {4, 5, 6, 7, 8, 9} <= set(result.chosen.tolist())


def test_shared_blocks_keep_their_places_in_the_pass(worker, monkeypatch):
    stored_piece(worker, 1, 4, first_id=1)
    span = StagedSpan(1, 0, 6, 10, 0)
    chunks = [RepairableChunk("00", 6, 10)]
    ask(worker, monkeypatch, [span], [4, 5, 10, 11], end=12, chunks=chunks, ratio=0.1, lower=4)
    assert worker._forward.places[0] == [[8, 9]]
    assert cached(worker, 0, range(4)) == [-1, -1, -1, -1]


class SlowDisk(DiskStore):
    """Reads wait until `gate` is set."""

    gate = threading.Event()

    def read(self, *arguments, **options):
        self.gate.wait()
        return super().read(*arguments, **options)


@pytest.fixture
def disk(tmp_path):
    SlowDisk.gate.clear()
    yield SlowDisk(StoreDirectory(tmp_path / "store"), "m" * 64)
    SlowDisk.gate.set()


def orders(*changes, reads=()):
    return ConnectorMetadata(disk=DiskOrders(list(reads), list(changes)))


def header(key, tokens):
    return EntryHeader(key, "m" * 64, "one", np.arange(tokens, dtype=np.int32), 0, "id", None, (), (), "")


def report_of(worker, wanted):
    """Step until the disk has reported what is wanted."""
    while True:
        time.sleep(0.001)
        worker.step(ConnectorMetadata())
        report = worker.take_report()
        if report is not None and wanted(report.disk):
            return report.disk


@pytest.fixture
def worker_with_file(make_worker, disk):
    """Entry "a" of six tokens, ids 500 on, is on disk and not in memory."""
    worker = make_worker(disk)
    stored_piece(worker, 5, 6)
    worker.step(orders(Write(5, header("a", 6))))
    report_of(worker, lambda report: report.written == [5])
    step(worker, freed=[5])
    yield worker
    SlowDisk.gate.set()
    worker.close()


def test_a_plan_waits_for_the_disk_and_others_do_not(worker_with_file):
    worker = worker_with_file
    waiting = message("a", [0, 1, 8], staged=[StagedSpan(9, 0, 2, 8, 0)])
    metadata = orders(reads=[Read(9, "a", 6)])
    metadata.plans = [waiting, message("b", range(5), block=8)]
    worker.step(metadata)
    assert worker.take_finished() == {"b"}
    worker.take_report()
    step(worker)
    assert worker._forward.slices == [[[0, 1, 2, 3, 4]]]
    SlowDisk.gate.set()
    assert report_of(worker, lambda report: report.loaded).loaded == [9]
    step(worker)
    assert cached(worker, 0, range(9)) == [100, 101, 500, 501, 502, 503, 504, 505, 108]


def test_a_question_waits_for_the_keys_it_looks_at_too(worker_with_file, monkeypatch):
    """They lie in vLLM's prefix cache, so they are not staged, but the question's attention needs them."""
    monkeypatch.setattr("cachecraft_rag.vllm.question.tensor_parallel_mean", lambda values: values)
    worker = worker_with_file
    key = StagedSpan(9, 0, 0, 6, 0)
    question = PendingChoice(
        "question", 0.5, 1, np.array([7]), np.empty(0, np.int64), (key,), (RepairableChunk("a", 0, 6, {}),)
    )
    plan = Plan(6, 8, np.array([6, 7]), (), (), question)
    metadata = orders(reads=[Read(9, "a", 6)])
    metadata.plans = [PlanMessage(("a", 1), plan, np.arange(100, 108), np.array([0, 1]))]
    worker.step(metadata)
    assert worker._forward.slices == []
    SlowDisk.gate.set()
    report_of(worker, lambda report: report.loaded)
    step(worker)
    assert worker._queue == {}
    assert worker._forward.slices[0] == [[7]]


def test_what_cannot_be_read_is_computed_with_the_disks_reason(worker_with_file, disk):
    worker = worker_with_file
    disk.path("a").write_bytes(disk.path("a").read_bytes()[:-4])
    SlowDisk.gate.set()
    metadata = orders(reads=[Read(9, "a", 6)])
    metadata.plans = [message("a", [0], end=8, staged=[StagedSpan(9, 0, 2, 8, 0)])]
    worker.step(metadata)
    results = {}
    while not results:
        time.sleep(0.001)
        report = worker.take_report()
        results |= report.results if report is not None else {}
        worker.step(ConnectorMetadata())
    assert "damaged" in results["a", 1].missing[9]
    assert cached(worker, 0, [0, *range(2, 8)]) == [100.0, *(100.0 + n for n in range(2, 8))]


def test_a_plan_cancelled_while_it_waits_for_the_disk_ends_once(worker_with_file):
    worker = worker_with_file
    metadata = orders(reads=[Read(9, "a", 6)])
    metadata.plans = [message("a", [0, 1, 8], staged=[StagedSpan(9, 0, 2, 8, 0)])]
    worker.step(metadata)
    finished, report = step(worker, cancelled=[("a", 1)])
    assert finished == {"a"}
    assert report.results["a", 1].cancelled
    SlowDisk.gate.set()
    assert report_of(worker, lambda report: report.loaded).loaded == [9]
    assert worker.take_finished() == set()


def test_closing_makes_the_changes_that_were_ordered(make_worker, disk):
    worker = make_worker(disk)
    stored_piece(worker, 5, 6)
    worker.step(orders(Write(5, header("a", 6)), Write(5, header("b", 6)), Remove("a")))
    worker.close()
    assert [found.key for found in disk.scan()] == ["b"]


@pytest.mark.parametrize(("compress", "error"), [("int8", 505 / 254), ("fp8", 505 / 16)])
def test_compressed_kv_is_staged_as_numbers(make_worker, compress, error):
    worker = make_worker(compress=compress)
    stored_piece(worker, 5, 6)
    run_all(worker, message("a", [0, 1, 8], staged=[StagedSpan(5, 0, 2, 8, 0)]))
    assert cached(worker, 0, range(9)) == pytest.approx([100, 101, *range(500, 506), 108], abs=error)
