"""The index of what is stored: a byte budget, eviction by least recent use, pins, deletion. Holds no tensors.

An entry is PENDING from the moment its bytes are reserved until the worker has its tensors, then READY. Its handle
names its tensors and is never used again, so that a deleted entry and its successor cannot be confused.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(slots=True, eq=False)
class Entry:
    """One stored piece of KV.

    `cached_at`: the position of its first token when it was computed. `users`: plans in flight that read it.
    """

    key: str
    handle: int
    namespace: str
    token_ids: npt.NDArray[np.int32]
    nbytes: int
    cached_at: int
    chunk_id: str | None
    digest: str | None
    documents: set[str] = field(default_factory=set)
    ready: bool = False
    pinned: bool = False
    users: int = 0


@dataclass(frozen=True, slots=True)
class IndexStats:
    """Counters since the start, and what is stored now (bytes, chunks, and tokens, the head's included)."""

    capacity_bytes: int
    used_bytes: int
    chunks: int
    tokens: int
    pinned: int
    stored: int
    evicted: int
    deleted: int
    rejected: int


class KvIndex:
    """Decides what is stored. Bytes of all entries, pending and deleted-but-read ones included, never exceed capacity.

    Handles whose tensors the worker must free are collected and taken with `take_freed`.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._doomed: dict[int, Entry] = {}
        self._by_handle: dict[int, Entry] = {}
        self._freed: list[int] = []
        self._handles = itertools.count(1)
        self._used = self._stored = self._evicted = self._deleted = self._rejected = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    @property
    def used_bytes(self) -> int:
        return self._used

    def get(self, key: str) -> Entry | None:
        """The entry of that key, pending or ready; does not count as a use."""
        return self._entries.get(key)

    def touch(self, entry: Entry) -> None:
        """Count a use."""
        self._entries.move_to_end(entry.key)

    def acquire(self, entry: Entry) -> None:
        """A plan reads the entry: it is neither evicted nor freed until `release`."""
        entry.users += 1

    def release(self, handle: int) -> None:
        """A plan that read the entry is done."""
        entry = self._by_handle[handle]
        entry.users -= 1
        if entry.users == 0 and handle in self._doomed:
            del self._doomed[handle]
            self._free(entry)

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
    ) -> Entry | None:
        """A pending entry with its bytes set aside, evicting others as needed; None where it cannot fit."""
        assert key not in self._entries, "reserve() of a key that is stored"
        if not self._make_room(nbytes):
            self._rejected += 1
            return None
        entry = Entry(key, next(self._handles), namespace, token_ids, nbytes, cached_at, chunk_id, digest)
        self._entries[key] = entry
        self._by_handle[entry.handle] = entry
        self._used += nbytes
        return entry

    def commit(self, handle: int) -> None:
        """The worker holds the entry's tensors. Ignored for an entry that was deleted meanwhile."""
        entry = self._by_handle.get(handle)
        if entry is not None and handle not in self._doomed and not entry.ready:
            entry.ready = True
            self._stored += 1

    def abort(self, handle: int) -> None:
        """A pending entry will not be filled, or its tensors were found damaged. Unknown handles are ignored."""
        entry = self._by_handle.get(handle)
        if entry is not None and handle not in self._doomed:
            self._remove(entry)

    def delete(self, select: Callable[[Entry], bool]) -> list[Entry]:
        """Remove all entries that `select` names, pinned ones too; returns them. Their bytes go once no plan reads."""
        removed = [entry for entry in self._entries.values() if select(entry)]
        for entry in removed:
            self._remove(entry)
        self._deleted += len(removed)
        return removed

    def delete_document(self, namespace: str, document_id: str) -> list[Entry]:
        """Remove the chunks of a document that no other document shares; the others only forget the document."""
        owned = [e for e in self._entries.values() if e.namespace == namespace and document_id in e.documents]
        for entry in owned:
            entry.documents.discard(document_id)
        gone = {entry.handle for entry in owned if not entry.documents}
        return self.delete(lambda entry: entry.handle in gone)

    @property
    def has_freed(self) -> bool:
        """Whether handles wait for `take_freed`."""
        return bool(self._freed)

    def take_freed(self) -> list[int]:
        """Handles whose tensors are to be freed, each exactly once."""
        freed, self._freed = self._freed, []
        return freed

    def stats(self) -> IndexStats:
        chunks = [entry for entry in self._entries.values() if entry.ready and entry.chunk_id is not None]
        return IndexStats(
            capacity_bytes=self.capacity_bytes,
            used_bytes=self._used,
            chunks=len(chunks),
            tokens=sum(entry.token_ids.size for entry in self._entries.values() if entry.ready),
            pinned=sum(entry.pinned for entry in chunks),
            stored=self._stored,
            evicted=self._evicted,
            deleted=self._deleted,
            rejected=self._rejected,
        )

    def check(self) -> list[str]:
        """Faults in the books, one sentence each; empty where all is well."""
        held = [*self._entries.values(), *self._doomed.values()]
        faults = []
        if (total := sum(entry.nbytes for entry in held)) != self._used:
            faults.append(f"entries hold {total} bytes but {self._used} are counted")
        if self._used > self.capacity_bytes:
            faults.append(f"{self._used} bytes are used of {self.capacity_bytes}")
        if set(self._by_handle) != {entry.handle for entry in held}:
            faults.append("the table of handles does not match the entries")
        faults += [f"entry {e.handle} has {e.users} users" for e in held if e.users < 0]
        return faults

    def _make_room(self, nbytes: int) -> bool:
        victims = []
        excess = self._used + nbytes - self.capacity_bytes
        for entry in self._entries.values():
            if excess <= 0:
                break
            if entry.ready and not entry.pinned and entry.users == 0:
                victims.append(entry)
                excess -= entry.nbytes
        if excess > 0:
            return False
        for entry in victims:
            self._remove(entry)
        self._evicted += len(victims)
        return True

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.key]
        if entry.users:
            self._doomed[entry.handle] = entry
        else:
            self._free(entry)

    def _free(self, entry: Entry) -> None:
        del self._by_handle[entry.handle]
        self._used -= entry.nbytes
        self._freed.append(entry.handle)
