"""The index of what is stored, in memory and on disk: byte budget, eviction, pins, deletion. Holds no tensors.

An entry in memory is PENDING from the moment its bytes are reserved until the worker has its tensors, then READY. Its
handle names its tensors there and is never used again, so that a deleted entry and its successor cannot be confused.
An entry that is on disk only has no handle and takes no memory. One that leaves memory stays, if it is on disk.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cachecraft_rag.store.changes import Change
from cachecraft_rag.store.entry import Entry, IndexStats, may_leave_disk
from cachecraft_rag.store.eviction import EvictionPolicy, LeastRecentlyUsed, lowest_ranked
from cachecraft_rag.store.ledger import MemoryLedger
from cachecraft_rag.store.pending_changes import PendingChanges
from cachecraft_rag.store.seen import AttentionStatistics, SeenContext


class KvIndex:
    """Decides what is stored. Bytes in memory, pending and deleted-but-read ones included, never exceed capacity.

    Handles whose tensors the worker must free are collected and taken with `take_freed`, what is to be changed on disk
    in `changes`. `namespace_share`: how much of the capacity one namespace may take, above 0 and up to 1; a full
    one evicts its own entries.
    """

    def __init__(
        self, capacity_bytes: int, eviction: EvictionPolicy | None = None, *, namespace_share: float = 1.0
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.changes = PendingChanges()
        self._ledger = MemoryLedger(capacity_bytes, namespace_share)
        self._eviction = eviction or LeastRecentlyUsed()
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._variants: dict[str, dict[str, None]] = {}  # keys by that of the chunk's canonical KV; some may be gone
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    @property
    def used_bytes(self) -> int:
        return self._ledger.used_bytes

    def get(self, key: str) -> Entry | None:
        """The entry of that key, pending or ready; does not count as a use."""
        return self._entries.get(key)

    def touch(self, entry: Entry, recomputed_share: float = 0.0) -> None:
        """Count a use, of which a share was recomputed all the same."""
        if entry.key in self._entries:
            self._entries.move_to_end(entry.key)
        self._eviction.used(entry, recomputed_share, len(self._ledger))

    def acquire(self, entry: Entry) -> None:
        """Somebody reads the entry: it is neither evicted nor freed until `release`."""
        assert entry.handle is not None, "an entry on disk was acquired before it was promoted"
        entry.users += 1

    def release(self, handle: int) -> None:
        """One that acquired the entry is done."""
        self._ledger.release(handle)

    def by_handle(self, handle: int) -> Entry | None:
        """The entry of a handle, unless it was deleted meanwhile."""
        return self._ledger.find(handle)

    def reserve(
        self,
        key: str,
        *,
        namespace: str,
        token_ids: npt.NDArray[np.int32],
        nbytes: int,
        cached_at: int,
        chunk_id: str | None = None,
        digest: str | None = None,
        seen: SeenContext | None = None,
    ) -> Entry | None:
        """A pending entry with its bytes set aside, evicting others as needed; None where it cannot fit."""
        assert key not in self._entries, "reserve() of a key that is stored"
        if not self._make_room(nbytes, namespace):
            self._counts["rejected"] += 1
            return None
        entry = Entry(key, None, namespace, token_ids, nbytes, cached_at, chunk_id, digest, seen=seen)
        self._add(entry)
        self._ledger.place(entry)
        self._eviction.used(entry, 1.0, len(self._ledger))
        return entry

    def variants(self, base: str) -> list[Entry]:
        """Entries, pending or ready, of the chunk with that canonical key that were computed behind other chunks."""
        keys = self._variants.get(base, {})
        found = [entry for key in keys if (entry := self._entries.get(key)) is not None]
        if len(found) < len(keys):
            self._variants[base] = {entry.key: None for entry in found}
        if keys and not found:
            del self._variants[base]
        return found

    def commit(self, handle: int, statistics: AttentionStatistics | None = None) -> None:
        """The worker holds the entry's tensors, a variant's with `statistics`. Ignored if it was deleted meanwhile."""
        entry = self.by_handle(handle)
        if entry is not None and not entry.ready:
            if entry.seen is not None:
                assert statistics is not None, "a variant was stored without what was measured of it"
                entry.seen = replace(entry.seen, statistics=statistics)
            entry.ready = True
            self._counts["stored"] += 1

    def abort(self, handle: int) -> None:
        """A pending entry will not be filled, or its bytes were found damaged. Unknown handles are ignored."""
        entry = self.by_handle(handle)
        if entry is not None:
            self._remove(entry, damaged=True)

    def add_on_disk(
        self,
        key: str,
        *,
        namespace: str,
        token_ids: npt.NDArray[np.int32],
        nbytes: int,
        cached_at: int,
        chunk_id: str | None,
        digest: str | None,
        documents: Iterable[str] = (),
        pinned: bool = False,
        seen: SeenContext | None = None,
    ) -> Entry:
        """An entry that was found on disk."""
        assert key not in self._entries, "add_on_disk() of a key that is stored"
        entry = Entry(key, None, namespace, token_ids, nbytes, cached_at, chunk_id, digest, set(documents), True, True)
        entry.pinned, entry.seen = pinned, seen
        self._add(entry)
        self._eviction.used(entry, 1.0, len(self._ledger))
        return entry

    def promote(self, entry: Entry) -> int | None:
        """Set memory aside for an entry on disk, and give it a handle; None where there is no room."""
        assert entry.handle is None, "promote() of an entry that is in memory"
        if not self._make_room(entry.nbytes, entry.namespace):
            return None
        self._counts["promoted"] += 1
        return self._ledger.place(entry)

    def order_write(self, entry: Entry, write: Change) -> None:
        """Its file is to be written; it stays in memory until `release`."""
        entry.on_disk = True
        self.acquire(entry)
        self.changes.add(write)

    def left_disk(self, key: str) -> None:
        """An entry's file was evicted, or could not be written. Where memory has it too, it stays there."""
        entry = self._entries.get(key)
        if entry is None or not entry.on_disk:
            return
        entry.on_disk = False
        if entry.handle is None:
            del self._entries[key]
            self._counts["evicted"] += 1

    def victims_on_disk(self, nbytes: int, namespace: str | None = None) -> list[str]:
        """Keys whose files may go so that about `nbytes` are freed, lowest rank first; maybe too few."""
        leaving = (e for e in self._entries.values() if may_leave_disk(e) and namespace in (None, e.namespace))
        return [entry.key for entry in lowest_ranked(leaving, nbytes)]

    def bytes_on_disk(self, namespace: str) -> int:
        """About what a namespace has on disk, or on its way there."""
        entries = (entry for entry in self._entries.values() if entry.on_disk and entry.namespace == namespace)
        return sum(entry.file_bytes for entry in entries)

    def evict_file(self, key: str) -> None:
        """Have a file removed that may go."""
        self.changes.remove(key)
        self.left_disk(key)

    def evict(self, entry: Entry) -> None:
        """Drop an entry that another is better than, from every tier."""
        self._remove(entry)
        self._counts["evicted"] += 1

    def delete(self, select: Callable[[Entry], bool]) -> list[Entry]:
        """Remove all entries that `select` names, pinned ones too; returns them. Their bytes go once no plan reads.

        Variants of other chunks that have attended to one of them go, too.
        """
        removed = self._remove_all(select)
        gone = {entry.key if entry.seen is None else entry.seen.base for entry in removed}
        self._remove_all(lambda entry: entry.seen is not None and not gone.isdisjoint(entry.seen.keys))
        return removed

    def delete_document(self, namespace: str, document_id: str) -> list[Entry]:
        """Remove the chunks of a document that no other document shares; the others only forget the document."""
        owned = [e for e in self._entries.values() if e.namespace == namespace and document_id in e.documents]
        for entry in owned:
            entry.documents.discard(document_id)
            if entry.documents:
                self.changes.document(entry, document_id, owns=False)
        gone = {entry.key for entry in owned if not entry.documents}
        return self.delete(lambda entry: entry.key in gone)

    def add_document(self, entry: Entry, document_id: str) -> None:
        """The entry's text is in that document, too."""
        if document_id not in entry.documents:
            entry.documents.add(document_id)
            self.changes.document(entry, document_id, owns=True)

    def pin(self, entry: Entry, pinned: bool) -> None:
        """Keep an entry from being evicted, in every tier, or let it go again."""
        if entry.pinned != pinned:
            entry.pinned = pinned
            self.changes.pin(entry)

    @property
    def has_freed(self) -> bool:
        """Whether handles wait for `take_freed`."""
        return self._ledger.has_freed

    def take_freed(self) -> list[int]:
        """Handles whose tensors are to be freed, each exactly once."""
        return self._ledger.take_freed()

    def room(self, namespace: str, *, eventually: bool = False) -> int:
        """Bytes that a new entry of that namespace could take at the cost of others.

        `eventually`: once nothing is being computed, read or written any more, so that only pins stay.
        """
        return self._ledger.room(namespace, eventually=eventually)

    def has_room(self, nbytes: int, namespace: str) -> bool:
        """Whether a new entry of that size could be stored now, at the cost of others."""
        return self._ledger.has_room(nbytes, namespace)

    def stats(self, namespace: str | None = None) -> IndexStats:
        """Of one namespace (without the counters, which are of all), or of all together."""
        ready = [e for e in self._entries.values() if e.ready and namespace in (None, e.namespace)]
        chunks = [entry for entry in ready if entry.chunk_id is not None and entry.seen is None]
        names = ("stored", "evicted", "demoted", "promoted", "deleted", "rejected")
        return IndexStats(
            capacity_bytes=self.capacity_bytes if namespace is None else self._ledger.quota,
            used_bytes=self.used_bytes if namespace is None else self._ledger.used_by(namespace),
            chunks=len(chunks),
            chunks_in_memory=sum(entry.handle is not None for entry in chunks),
            chunks_on_disk=sum(entry.on_disk for entry in chunks),
            variants=sum(entry.seen is not None for entry in ready),
            tokens=sum(entry.token_ids.size for entry in ready),
            pinned=sum(entry.pinned for entry in chunks),
            **{name: self._counts[name] if namespace is None else None for name in names},
        )

    def check(self) -> list[str]:
        """Faults in the books, one sentence each; empty where all is well."""
        nowhere = (key for key, entry in self._entries.items() if entry.handle is None and not entry.on_disk)
        return self._ledger.check(self._entries.values()) + [f"entry {key} is nowhere" for key in nowhere]

    def _add(self, entry: Entry) -> None:
        self._entries[entry.key] = entry
        if entry.seen is not None:
            self._variants.setdefault(entry.seen.base, {})[entry.key] = None

    def _make_room(self, nbytes: int, namespace: str) -> bool:
        leaving = self._ledger.victims(nbytes, namespace, self._entries.values())
        if leaving is None:
            return False
        for entry in leaving:
            self._ledger.free(entry)
            if entry.on_disk:
                entry.handle = None
                self._counts["demoted"] += 1
            else:
                del self._entries[entry.key]
                self._counts["evicted"] += 1
        return True

    def _remove_all(self, select: Callable[[Entry], bool]) -> list[Entry]:
        removed = [entry for entry in self._entries.values() if select(entry)]
        for entry in removed:
            self._remove(entry)
        self._counts["deleted"] += len(removed)
        return removed

    def _remove(self, entry: Entry, *, damaged: bool = False) -> None:
        """Drop an entry from every tier."""
        del self._entries[entry.key]
        if entry.on_disk:
            self.changes.remove(entry.key, damaged=damaged)
        self._ledger.discard(entry)
