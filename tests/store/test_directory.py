"""The byte budget, and many processes in one folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cachecraft_rag.store.directory import StoreFull


def start(action, store, *arguments):
    command = [sys.executable, Path(__file__).with_name("other_process.py"), action, store.directory.root, *arguments]
    return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)


def size_of_one(store, put):
    put(store, "probe")
    size = store.path("probe").stat().st_size
    store.remove(["probe"])
    return size


def keys(store):
    return {header.key for header in store.scan()}


def test_victims_go_first_and_only_as_far_as_needed(open_store, put):
    size = size_of_one(open_store(), put)
    store = open_store(open_store().directory.used_bytes() + 3 * size + 20)
    for key in ("a", "b", "c"):
        put(store, key)
    put(store, "d", victims=["b", "c"])
    assert keys(store) == {"a", "c", "d"}


def test_without_victims_the_oldest_goes_but_never_a_pinned_one(open_store, put):
    store = open_store()
    size = size_of_one(store, put)
    for age, key in enumerate(("a", "b", "c")):
        put(store, key)
        os.utime(store.path(key), (age, age))
    store.change_owners("a", pinned=True)
    small = open_store(store.directory.used_bytes() + size // 2)
    put(small, "d")
    assert keys(small) == {"a", "c", "d"}
    assert small.directory.used_bytes() <= small.directory.capacity_bytes


def test_what_cannot_fit_is_refused_and_nothing_is_counted(open_store, put):
    store = open_store()
    size = size_of_one(store, put)
    tight = open_store(store.directory.used_bytes() + size // 2)
    with pytest.raises(StoreFull):
        put(tight, "a")
    assert tight.directory.used_bytes() == tight.directory.recount()
    assert keys(tight) == set()


@pytest.mark.parametrize("content", ["", "not a number", None])
def test_a_lost_count_is_made_afresh(store, put, content):
    put(store, "a")
    counted = store.directory.used_bytes()
    usage = store.directory.root / "usage"
    usage.unlink() if content is None else usage.write_text(content)
    assert store.directory.used_bytes() == counted


def test_what_a_living_writer_has_is_left_alone(store, put):
    put(store, "a")
    with store.directory.writing(store.path("b"), 100) as unfinished:
        assert store.directory.clean() == []
        assert store.directory.used_bytes() == store.directory.recount()
        unfinished.file.write(b"x" * 100)
    assert store.path("b").read_bytes() == b"x" * 100


def test_killed_while_writing_leaves_whole_entries_only(store, put, get):
    data = put(store, "a")
    used = store.directory.used_bytes()
    process = start("write_half", store)
    assert process.stdout.readline() == "half\n"
    assert len(list(store.folder.glob("*.partial"))) == 1
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert len(store.directory.clean()) == 1
    assert not list(store.folder.glob("*.partial"))
    assert store.directory.used_bytes() == store.directory.recount() == used
    assert keys(store) == {"a"}
    assert get(store, "a") == data


def test_four_processes_at_once_keep_the_budget_and_every_entry_whole(open_store, put):
    store = open_store()
    size = size_of_one(store, put)
    capacity = store.directory.used_bytes() + 6 * size
    processes = [start("hammer", store, capacity, number) for number in range(4)]
    assert [process.communicate()[0] for process in processes] == [""] * 4
    assert [process.returncode for process in processes] == [0] * 4
    assert store.directory.used_bytes() == store.directory.recount() <= capacity
    assert store.directory.clean() == []


def test_a_full_disk_is_an_oserror_and_leaves_nothing(store):
    assert start("fill", store).communicate()[0] in ("EFBIG\n", "ENOSPC\n")
    assert [path.name for path in store.folder.iterdir()] == ["model.json"]
    assert store.directory.used_bytes() == store.directory.recount()
