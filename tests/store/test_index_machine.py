"""Random sequences of what the scheduler half does with its index."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from cachecraft_rag.store import KvIndex
from cachecraft_rag.store.changes import Remove
from cachecraft_rag.store.eviction import FrequencyReuse, LeastRecentlyUsed
from cachecraft_rag.store.seen import AttentionStatistics, SeenContext

CAPACITY = 100
KEYS = [f"key{number}" for number in range(8)]
NAMESPACES = ["one", "two"]
DOCUMENTS = ["a.md", "b.md", "c.md"]
VARIANTS = {"key5": "key1", "key6": "key1", "key7": "key2"}  # and the key of the chunk's canonical KV
STATISTICS = AttentionStatistics(np.ones(1, np.float32), 1.0, np.ones(1, np.float32))


class IndexMachine(RuleBasedStateMachine):
    """The index as the scheduler half uses it: plans acquire what they read and what they fill, then release."""

    eviction = LeastRecentlyUsed
    namespace_share = 1.0
    reads = Bundle("reads")
    fills = Bundle("fills")

    def __init__(self):
        super().__init__()
        self.index = KvIndex(CAPACITY, self.eviction(), namespace_share=self.namespace_share)
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
        ids = np.arange(nbytes, dtype=np.int32)
        seen = SeenContext(VARIANTS[key], ("x",), (1,)) if key in VARIANTS else None
        entry = self.index.reserve(
            key, namespace=namespace, token_ids=ids, nbytes=nbytes, cached_at=0, chunk_id=f"id-{key}", seen=seen
        )
        if entry is None:
            return multiple()
        entry.documents.update(documents)
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
            self.index.commit(handle, STATISTICS)
        else:
            self.index.abort(handle)
            self.deletable.add(handle)
        self._release(handle)

    @rule(key=st.sampled_from(sorted(VARIANTS)))
    def make_place_for_another_variant(self, key):
        entry = self.index.get(key)
        if entry is not None and entry.ready and not entry.pinned and entry.users == 0:
            if entry.handle is not None:
                self.deletable.add(entry.handle)
            self.index.evict(entry)
            assert self.index.get(key) is None

    @invariant()
    def variants_are_found_by_their_chunk(self):
        for base in KEYS:
            expected = {key for key, own in VARIANTS.items() if own == base and self.index.get(key) is not None}
            found = self.index.variants(base)
            assert {entry.key for entry in found} == expected
            assert all(entry.seen.statistics is STATISTICS for entry in found if entry.ready)

    @rule(target=reads, key=st.sampled_from(KEYS))
    def read(self, key):
        entry = self.index.get(key)
        if entry is None or not entry.ready or entry.handle is None:
            return multiple()
        self.index.touch(entry, 0.2)
        self.index.acquire(entry)
        self.users[entry.handle] += 1
        return entry.handle

    @rule(handle=consumes(reads), missing=st.booleans())
    def finish_read(self, handle, missing):
        if missing:
            self.index.abort(handle)
            self.deletable.add(handle)
        self._release(handle)

    @rule(target=reads, key=st.sampled_from(KEYS), succeeds=st.booleans())
    def write_to_disk(self, key, succeeds):
        """The write itself is one of those that read the entry; how it ends is told by `left_disk`."""
        entry = self.index.get(key)
        if entry is None or not entry.ready or entry.on_disk:
            return multiple()
        self.index.order_write(entry, Remove(key))
        self.users[entry.handle] += 1
        if not succeeds:
            self.index.left_disk(key)
        return entry.handle

    @rule(target=reads, key=st.sampled_from(KEYS))
    def promote(self, key):
        entry = self.index.get(key)
        if entry is None or entry.handle is not None:
            return multiple()
        handle = self.index.promote(entry)
        if handle is None:
            return multiple()
        assert handle == entry.handle
        assert handle not in self.issued
        self.issued.add(handle)
        self.nbytes[handle] = entry.nbytes
        self.index.acquire(entry)
        self.users[handle] = 1
        return handle

    @rule(key=st.sampled_from(KEYS))
    def evict_the_file(self, key):
        self.index.left_disk(key)
        entry = self.index.get(key)
        assert entry is None or not entry.on_disk

    @rule(key=st.sampled_from(KEYS), nbytes=st.integers(1, 60))
    def find_on_disk(self, key, nbytes):
        if self.index.get(key) is None:
            own = {"nbytes": nbytes, "cached_at": 0, "chunk_id": f"id-{key}", "digest": None}
            seen = SeenContext(VARIANTS[key], ("x",), (1,), STATISTICS) if key in VARIANTS else None
            self.index.add_on_disk(key, namespace="one", token_ids=np.arange(nbytes, dtype=np.int32), seen=seen, **own)

    @rule(nbytes=st.integers(1, 100))
    def choose_victims(self, nbytes):
        victims = [self.index.get(key) for key in self.index.victims_on_disk(nbytes)]
        assert all(e.on_disk and not e.pinned and e.users == 0 for e in victims)
        left = [e for e in self.index if e.on_disk and not e.pinned and e.users == 0 and e not in victims]
        assert not left or sum(e.nbytes for e in victims) >= nbytes

    @rule(key=st.sampled_from(KEYS), pinned=st.booleans())
    def pin(self, key, pinned):
        entry = self.index.get(key)
        if entry is not None:
            self.index.pin(entry, pinned)
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
        before = [e for e in self.index if e.namespace == namespace]
        removed = self.index.delete(lambda e: e.namespace == namespace)
        assert removed == before
        self.deletable.update(e.handle for e in before)

    @rule(namespace=st.sampled_from(NAMESPACES), document=st.sampled_from(DOCUMENTS))
    def delete_document(self, namespace, document):
        alone = {e.key for e in self.index if e.namespace == namespace and e.documents == {document}}
        shared = {e.key for e in self.index if e.namespace == namespace and document in e.documents} - alone
        elsewhere = {e.key for e in self.index if e.namespace != namespace and document in e.documents}
        removed = self.index.delete_document(namespace, document)
        assert {e.key for e in removed} == alone
        self.deletable.update(e.handle for e in removed)
        assert all(document not in self.index.get(key).documents for key in shared)
        assert all(document in self.index.get(key).documents for key in elsewhere)

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
        for name in NAMESPACES:
            assert self.index.stats(name).used_bytes <= CAPACITY * self.namespace_share
        stats = self.index.stats()
        assert stats.used_bytes == self.index.used_bytes
        canonical = [e for e in self.index if e.ready and e.seen is None]
        assert stats.chunks == len(canonical)
        assert stats.variants == sum(e.ready for e in self.index) - len(canonical)
        assert stats.pinned == sum(e.pinned for e in canonical)

    @invariant()
    def every_used_entry_holds_its_bytes(self):
        held = {e.handle for e in self.index if e.handle is not None} | {
            handle for handle, users in self.users.items() if users
        }
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


class ScoreMachine(IndexMachine):
    eviction = FrequencyReuse
    namespace_share = 0.6


TestIndexMachine = IndexMachine.TestCase
TestIndexMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestScoreMachine = ScoreMachine.TestCase
TestScoreMachine.settings = settings(max_examples=75, stateful_step_count=40, deadline=None)
