import numpy as np
import pytest

from cachecraft_rag.store import KvIndex


def put(index, key, nbytes=10, *, namespace="one", documents=(), ready=True):
    entry = index.reserve(
        key,
        namespace=namespace,
        token_ids=np.arange(nbytes, dtype=np.int32),
        nbytes=nbytes,
        cached_at=0,
        chunk_id=f"id-{key}",
    )
    if entry is not None:
        entry.documents.update(documents)
        if ready:
            index.commit(entry.handle)
    return entry


def test_the_least_recently_used_goes_first():
    index = KvIndex(30)
    for key in ("a", "b", "c"):
        put(index, key)
    index.touch(index.get("a"))
    put(index, "d")
    assert [entry.key for entry in index] == ["c", "a", "d"]
    assert index.stats().evicted == 1


def test_looking_up_is_not_a_use():
    index = KvIndex(20)
    put(index, "a")
    put(index, "b")
    index.get("a")
    put(index, "c")
    assert index.get("a") is None


@pytest.mark.parametrize("kind", ["pinned", "in use", "pending"])
def test_what_may_not_be_evicted_is_kept_and_the_newcomer_rejected(kind):
    index = KvIndex(10)
    entry = put(index, "a", ready=kind != "pending")
    if kind == "pinned":
        entry.pinned = True
    elif kind == "in use":
        index.acquire(entry)
    assert put(index, "b") is None
    assert index.get("a") is entry
    assert index.stats().rejected == 1
    assert index.take_freed() == []


def test_nothing_is_evicted_for_what_cannot_fit():
    index = KvIndex(30)
    put(index, "a")
    pinned = put(index, "b", 15)
    pinned.pinned = True
    assert put(index, "big", 20) is None
    assert put(index, "huge", 31) is None
    assert {entry.key for entry in index} == {"a", "b"}
    assert index.stats().evicted == 0


def test_an_entry_as_large_as_the_store_fits():
    index = KvIndex(30)
    put(index, "a")
    assert put(index, "b", 30) is not None
    assert index.used_bytes == 30


def test_deleted_while_read_keeps_its_bytes_and_leaves_its_key_free():
    index = KvIndex(20)
    old = put(index, "a")
    index.acquire(old)
    index.acquire(old)
    assert index.delete(lambda entry: True) == [old]
    assert index.get("a") is None
    assert index.used_bytes == 10
    new = put(index, "a")
    assert new.handle != old.handle
    index.release(old.handle)
    assert index.take_freed() == []
    index.release(old.handle)
    assert index.take_freed() == [old.handle]
    assert index.get("a") is new
    assert index.check() == []


def test_a_commit_after_deletion_does_not_bring_it_back():
    index = KvIndex(20)
    entry = put(index, "a", ready=False)
    index.acquire(entry)
    index.delete(lambda e: True)
    index.commit(entry.handle)
    assert len(index) == 0
    assert index.stats().stored == 0
    index.release(entry.handle)
    assert index.take_freed() == [entry.handle]
    index.commit(entry.handle)
    index.abort(entry.handle)
    assert index.check() == []


def test_a_second_commit_counts_once():
    index = KvIndex(20)
    entry = put(index, "a")
    index.commit(entry.handle)
    assert index.stats().stored == 1


def test_a_document_is_deleted_but_not_what_another_shares():
    index = KvIndex(100)
    put(index, "own", documents=["a.md"])
    put(index, "shared", documents=["a.md", "b.md"])
    put(index, "tenant", documents=["a.md"], namespace="two")
    put(index, "none")
    assert [entry.key for entry in index.delete_document("one", "a.md")] == ["own"]
    assert {entry.key for entry in index} == {"shared", "tenant", "none"}
    assert index.get("shared").documents == {"b.md"}
    assert [entry.key for entry in index.delete_document("one", "b.md")] == ["shared"]
    assert index.delete_document("one", "b.md") == []
    assert index.stats().deleted == 2


def test_stats_count_chunks_and_not_the_head():
    index = KvIndex(100)
    head = index.reserve("head", namespace="one", token_ids=np.arange(3, dtype=np.int32), nbytes=3, cached_at=0)
    index.commit(head.handle)
    put(index, "a", 10)
    put(index, "pending", 20, ready=False)
    stats = index.stats()
    assert (stats.chunks, stats.tokens, stats.used_bytes) == (1, 13, 33)


def test_a_full_namespace_evicts_its_own_and_leaves_the_others_alone():
    index = KvIndex(40, namespace_share=0.5)
    for key in ("a", "b"):
        put(index, key, namespace="one")
    for key in ("c", "d", "e"):
        put(index, key, namespace="two")
    assert [entry.key for entry in index] == ["a", "b", "d", "e"]
    assert put(index, "big", 21, namespace="two") is None
    assert index.check() == []


def test_stats_of_one_namespace_tell_nothing_of_the_others():
    index = KvIndex(40, namespace_share=0.5)
    put(index, "a", namespace="one")
    before = index.stats("one")
    for key in ("c", "d", "e"):
        put(index, key, namespace="two")
    index.delete(lambda entry: entry.key == "d")
    assert index.stats("one") == before
    assert (before.capacity_bytes, before.used_bytes, before.chunks, before.stored) == (20, 10, 1, None)
    assert index.stats("nobody").chunks == 0


def test_room_is_what_a_new_entry_could_take():
    index = KvIndex(40, namespace_share=0.75)
    pinned = put(index, "a", namespace="one")
    index.pin(pinned, True)
    put(index, "b", namespace="one")
    put(index, "c", namespace="two")
    assert index.room("one") == 20
    assert index.room("two") == 30
    assert index.room("three") == 30
    index.acquire(index.get("b"))
    assert index.room("one") == 10
    assert index.room("one", eventually=True) == 20
