"""Plans that need what is on disk, and orders for it."""

import threading
import time

import numpy as np
import pytest

from cachecraft_rag.reuse import Plan, StagedSpan
from cachecraft_rag.reuse.plan import PendingChoice
from cachecraft_rag.reuse.selection import RepairableChunk
from cachecraft_rag.store.changes import DiskOrders, Read, Remove, Write
from cachecraft_rag.store.directory import StoreDirectory
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.header import EntryHeader
from cachecraft_rag.vllm.protocol import ConnectorMetadata, PlanMessage


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
        worker.half.step(ConnectorMetadata())
        report = worker.half.take_report()
        if report is not None and wanted(report.disk):
            return report.disk


@pytest.fixture
def worker_with_file(make_worker, disk):
    """Entry "a" of six tokens, ids 500 on, is on disk and not in memory."""
    worker = make_worker(disk)
    worker.stored_piece(5, 6)
    worker.half.step(orders(Write(5, header("a", 6))))
    report_of(worker, lambda report: report.written == [5])
    worker.step(freed=[5])
    yield worker
    SlowDisk.gate.set()
    worker.half.close()


def test_a_plan_waits_for_the_disk_and_others_do_not(worker_with_file):
    worker = worker_with_file
    waiting = worker.message("a", [0, 1, 8], staged=[StagedSpan(9, 0, 2, 8, 0)])
    metadata = orders(reads=[Read(9, "a", 6)])
    metadata.plans = [waiting, worker.message("b", range(5), block=8)]
    worker.half.step(metadata)
    assert worker.half.take_finished() == {"b"}
    worker.half.take_report()
    worker.step()
    assert worker.forward.slices == [[[0, 1, 2, 3, 4]]]
    SlowDisk.gate.set()
    assert report_of(worker, lambda report: report.loaded).loaded == [9]
    worker.step()
    assert worker.cached(0, range(9)) == [100, 101, 500, 501, 502, 503, 504, 505, 108]


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
    worker.half.step(metadata)
    assert worker.forward.slices == []
    SlowDisk.gate.set()
    report_of(worker, lambda report: report.loaded)
    worker.step()
    assert worker.half._queue == {}
    assert worker.forward.slices[0] == [[7]]


def test_what_cannot_be_read_is_computed_with_the_disks_reason(worker_with_file, disk):
    worker = worker_with_file
    disk.path("a").write_bytes(disk.path("a").read_bytes()[:-4])
    SlowDisk.gate.set()
    metadata = orders(reads=[Read(9, "a", 6)])
    metadata.plans = [worker.message("a", [0], end=8, staged=[StagedSpan(9, 0, 2, 8, 0)])]
    worker.half.step(metadata)
    results = {}
    while not results:
        time.sleep(0.001)
        report = worker.half.take_report()
        results |= report.results if report is not None else {}
        worker.half.step(ConnectorMetadata())
    assert "damaged" in results["a", 1].missing[9]
    assert worker.cached(0, [0, *range(2, 8)]) == [100.0, *(100.0 + n for n in range(2, 8))]


def test_a_plan_cancelled_while_it_waits_for_the_disk_ends_once(worker_with_file):
    worker = worker_with_file
    metadata = orders(reads=[Read(9, "a", 6)])
    metadata.plans = [worker.message("a", [0, 1, 8], staged=[StagedSpan(9, 0, 2, 8, 0)])]
    worker.half.step(metadata)
    finished, report = worker.step(cancelled=[("a", 1)])
    assert finished == {"a"}
    assert report.results["a", 1].cancelled
    SlowDisk.gate.set()
    assert report_of(worker, lambda report: report.loaded).loaded == [9]
    assert worker.half.take_finished() == set()


def test_closing_makes_the_changes_that_were_ordered(make_worker, disk):
    worker = make_worker(disk)
    worker.stored_piece(5, 6)
    worker.half.step(orders(Write(5, header("a", 6)), Write(5, header("b", 6)), Remove("a")))
    worker.half.close()
    assert [found.key for found in disk.scan()] == ["b"]
