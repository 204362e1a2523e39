"""Orders carried out on threads, against real files."""

import threading

import pytest
import torch

from cachecraft_rag.store.changes import ChangeOwners, DiskOrders, DiskReport, Read, Remove, Write
from cachecraft_rag.store.disk_io import DiskIo
from cachecraft_rag.store.memory import HostMemoryStore

TOKENS = 6


@pytest.fixture
def memory():
    return HostMemoryStore(layers=2, kv_heads=1, head_size=8, dtype=torch.bfloat16)


@pytest.fixture
def io(store, memory):
    disk_io = DiskIo(store, memory)
    yield disk_io
    disk_io.close()


@pytest.fixture
def order(io, header):
    """`order(write=, read=, remove=)`: carried out to the end; returns the report."""

    def carry_out(*changes, reads=()):
        io.begin(DiskOrders(list(reads), list(changes)))
        report = DiskReport()
        while report.changed < len(changes) or len(report.loaded) + len(report.unreadable) < len(reads):
            io.collect(report, 1.0)
        return report

    return carry_out


def in_memory(memory, handle):
    kv = memory.allocate(TOKENS)
    kv.data.copy_(torch.randn(kv.data.shape))
    memory.put(handle, kv)
    return kv


def test_written_freed_and_read_again_it_is_the_same(memory, order, header):
    kv = in_memory(memory, 1)
    report = order(Write(1, header("a")))
    assert (report.written, report.unwritten, report.changed) == ([1], {}, 1)
    memory.free(1)
    report = order(reads=[Read(2, "a", TOKENS)])
    assert report.loaded == [2]
    assert torch.equal(memory.get(2).data, kv.data)
    assert torch.equal(memory.get(2).key, kv.key)


def test_changes_are_made_in_their_order(memory, order, header, store):
    in_memory(memory, 1)
    report = order(
        Write(1, header("a", documents=["x"])),
        ChangeOwners("a", add=("y",), pinned=True),
        Write(1, header("b")),
        Remove("a"),
    )
    assert report.written == [1, 1]
    assert report.removed == ["a"]
    assert [found.key for found in store.scan()] == ["b"]
    assert report.used_bytes == store.directory.recount()


def test_what_cannot_be_read_has_its_reason_until_it_is_forgotten(memory, io, order, header, store):
    in_memory(memory, 1)
    order(Write(1, header("a")))
    path = store.path("a")
    path.write_bytes(path.read_bytes()[:-5])
    report = order(reads=[Read(2, "a", TOKENS), Read(3, "b", TOKENS)])
    assert "damaged" in report.unreadable[2]
    assert "vanished" in report.unreadable[3]
    assert memory.get(2) is None
    assert io.reason(2) == report.unreadable[2]
    io.forget([2])
    assert io.reason(2) is None


def test_a_write_that_fails_says_so_and_the_next_one_is_made(memory, order, header, open_store):
    in_memory(memory, 1)
    wrong = header("../../nowhere/a")
    report = order(Write(1, wrong), Write(1, header("b")))
    assert list(report.unwritten) == [1]
    assert report.written == [1]


def test_nobody_waits_while_the_disk_does(memory, io, header, store, monkeypatch):
    gate = threading.Event()
    read = store.read

    def slow(*arguments):
        gate.wait()
        return read(*arguments)

    monkeypatch.setattr(store, "read", slow)
    in_memory(memory, 1)
    io.begin(DiskOrders([Read(2, "a", TOKENS)], [Write(1, header("a"))]))
    report = DiskReport()
    while not report.changed:
        io.collect(report, 1.0)
    assert io.is_loading(2)
    assert not io.collect(DiskReport())
    gate.set()
    while not report.loaded:
        io.collect(report, 1.0)
    assert not io.is_loading(2)


def test_closing_writes_what_was_ordered(memory, store, header):
    io = DiskIo(store, memory)
    in_memory(memory, 1)
    io.begin(DiskOrders([], [Write(1, header(f"key{n}")) for n in range(20)]))
    io.close()
    assert len(list(store.scan())) == 20


def test_of_several_ranks_a_read_is_over_once_it_is_settled(store, memory, put):
    put(store, "a")
    put(store, "b")
    io = DiskIo(store, memory, ranks=2)
    io.begin(DiskOrders([Read(1, "a", TOKENS), Read(2, "b", TOKENS), Read(3, "missing", TOKENS)], []))
    report = DiskReport()
    while len(report.loaded) + len(report.unreadable) < 3:
        io.collect(report, 1.0)
    assert sorted(report.loaded) == [1, 2]
    assert all(io.is_loading(handle) for handle in (1, 2, 3))
    io.begin(DiskOrders(settled={1: None, 2: "another rank's file is torn", 3: "it has vanished"}))
    assert not any(io.is_loading(handle) for handle in (1, 2, 3))
    assert memory.get(1) is not None
    assert memory.get(2) is None
    assert io.reason(2) == "another rank's file is torn"
    io.close()
