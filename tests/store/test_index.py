import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from cachecraft_rag.store import KvIndex

CAPACITY = 100
KEYS = [f"key{number}" for number in range(8)]
NAMESPACES = ["one", "two"]
DOCUMENTS = ["a.md", "b.md", "c.md"]


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


class IndexMachine(RuleBasedStateMachine):
    """The index as the scheduler half uses it: plans acquire what they read and what they fill, then release."""

    reads = Bundle("reads")
    fills = Bundle("fills")

    def __init__(self):
        super().__init__()
        self.index = KvIndex(CAPACITY)
        self.issued = set()
        self.freed = set()
        self.users = {}
        self.nbytes = {}
        self.pinned = set()
        self.deletable = set()  # handles that a caller deleted or aborted: they may go though pinned

    @rule(target=fills, key=st.sampled_from(KEYS), nbytes=st.integers(1, 60), namespace=st.sampled_from(NAMESPACES),
          documents=st.sets(st.sampled_from(DOCUMENTS)))  # fmt: skip
    def reserve(self, key, nbytes, namespace, documents):
        if self.index.get(key) is not None:
            return multiple()
        entry = put(self.index, key, nbytes, namespace=namespace, documents=documents, ready=False)
        if entry is None:
            return multiple()
        assert entry.handle not in self.issued
        assert not entry.ready
        self.issued.add(entry.handle)
        self.nbytes[entry.handle] = nbytes
        self.index.acquire(entry)
        self.users[entry.handle] = self.users.get(entry.handle, 0) + 1
        return entry.handle

    @rule(handle=consumes(fills), filled=st.booleans())
    def finish_fill(self, handle, filled):
        if filled:
            self.index.commit(handle)
        else:
            self.index.abort(handle)
            self.deletable.add(handle)
        self._release(handle)

    @rule(target=reads, key=st.sampled_from(KEYS))
    def read(self, key):
        entry = self.index.get(key)
        if entry is None or not entry.ready:
            return multiple()
        self.index.touch(entry)
        self.index.acquire(entry)
        self.users[entry.handle] += 1
        return entry.handle

    @rule(handle=consumes(reads), missing=st.booleans())
    def finish_read(self, handle, missing):
        if missing:
            self.index.abort(handle)
            self.deletable.add(handle)
        self._release(handle)

    @rule(key=st.sampled_from(KEYS), pinned=st.booleans())
    def pin(self, key, pinned):
        entry = self.index.get(key)
        if entry is not None:
            entry.pinned = pinned
            (self.pinned.add if pinned else self.pinned.discard)(entry.handle)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key):
        entry = self.index.get(key)
        removed = self.index.delete(lambda e: e.key == key)
        assert [e.handle for e in removed] == ([entry.handle] if entry is not None else [])
        self.deletable.update(e.handle for e in removed)
        assert self.index.get(key) is None

    @rule(namespace=st.sampled_from(NAMESPACES))
    def delete_everything_of_a_namespace(self, namespace):
        before = {e.handle for e in self.index if e.namespace == namespace}
        removed = self.index.delete(lambda e: e.namespace == namespace)
        assert {e.handle for e in removed} == before
        self.deletable.update(before)

    @rule(namespace=st.sampled_from(NAMESPACES), document=st.sampled_from(DOCUMENTS))
    def delete_document(self, namespace, document):
        alone = {e.handle for e in self.index if e.namespace == namespace and e.documents == {document}}
        shared = {e.handle for e in self.index if e.namespace == namespace and document in e.documents} - alone
        elsewhere = {e.handle for e in self.index if e.namespace != namespace and document in e.documents}
        removed = self.index.delete_document(namespace, document)
        assert {e.handle for e in removed} == alone
        self.deletable.update(alone)
        left = {e.handle: e for e in self.index}
        assert all(document not in left[handle].documents for handle in shared)
        assert all(document in left[handle].documents for handle in elsewhere)

    @rule()
    def take_freed(self):
        freed = self.index.take_freed()
        assert len(freed) == len(set(freed))
        assert not self.freed & set(freed), "freed twice"
        for handle in freed:
            assert self.users.get(handle, 0) == 0, "freed while a plan reads it"
            assert handle not in self.pinned or handle in self.deletable, "a pinned entry was evicted"
        self.freed |= set(freed)

    def _release(self, handle):
        self.users[handle] -= 1
        self.index.release(handle)

    @invariant()
    def books_agree(self):
        assert self.index.check() == []
        assert self.index.used_bytes <= CAPACITY
        stats = self.index.stats()
        assert stats.used_bytes == self.index.used_bytes
        assert stats.chunks == sum(e.ready for e in self.index)
        assert stats.pinned == sum(e.ready and e.pinned for e in self.index)

    @invariant()
    def every_used_entry_holds_its_bytes(self):
        held = {e.handle for e in self.index} | {handle for handle, users in self.users.items() if users}
        assert self.index.used_bytes == sum(self.nbytes[handle] for handle in held)

    def teardown(self):
        for handle, users in self.users.items():
            for _ in range(users):
                self.index.release(handle)
        self.users = {}
        self.index.delete(lambda entry: True)
        self.freed |= set(self.index.take_freed())
        assert self.freed == self.issued, "a handle was never freed"
        assert self.index.used_bytes == 0
        assert self.index.check() == []


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


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
