"""What the store answers of its device tier."""

import numpy as np
import pytest

from cachecraft_rag.store import KvIndex
from cachecraft_rag.store.device import DeviceReport
from cachecraft_rag.store.entry import EntrySize
from cachecraft_rag.vllm.control import WorkerState, run_control
from cachecraft_rag.vllm.disk_tier import DiskTier
from cachecraft_rag.vllm.protocol import RequestParams


@pytest.fixture
def index():
    """A head with handle 1 and two chunks with handles 2 and 3, of ten bytes each."""
    index = KvIndex(100)
    for number, chunk_id in enumerate((None, "a", "b")):
        ids = np.arange(10, dtype=np.int32)
        entry = index.reserve(f"k{number}", namespace="one", token_ids=ids, nbytes=10, cached_at=0, chunk_id=chunk_id)
        index.commit(entry.handle)
    return index


def ask(index, device, *, busy=False, capacity=40, **control):
    params = RequestParams("one", "none", 0.0, 1, (), control=control)
    disk = DiskTier(index, None, EntrySize(1))
    return run_control(index, params, WorkerState(30, device, capacity, busy), disk)


def test_chunks_on_the_device_are_counted_without_the_head(index):
    stats = ask(index, DeviceReport(20, (1, 3), 7), op="stats")
    names = ("chunks_on_device", "device_bytes", "device_capacity_bytes", "device_hits")
    assert [stats[name] for name in names] == [1, 20, 40, 7]


def test_one_tenants_stats_say_nothing_of_the_device(index):
    assert not any("device" in name for name in ask(index, DeviceReport(20, (1, 3), 7), op="stats", own=True))


def test_copies_of_what_is_gone_and_too_many_bytes_are_faults_unless_the_worker_has_work(index):
    assert ask(index, DeviceReport(20, (1, 3)), op="check")["faults"] == []
    index.delete(lambda entry: entry.chunk_id == "b")
    device = DeviceReport(50, (1, 3))
    (bytes_held, too_much, stray) = ask(index, device, op="check")["faults"]
    assert "20 bytes" in bytes_held
    assert "50 bytes of 40" in too_much
    assert "copy of entry 3" in stray
    assert ask(index, device, op="check", busy=True)["faults"] == []
