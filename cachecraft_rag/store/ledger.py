"""Who holds bytes in memory: handles, the budget of all and of each namespace, and what is to be freed."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable

from cachecraft_rag.store.entry import Entry, may_leave_memory
from cachecraft_rag.store.eviction import make_way


class MemoryLedger:
    """Bytes held, those of deleted entries that are still read included. What goes is the index's doing.

    `quota`: the bytes that one namespace may hold.
    """

    def __init__(self, capacity_bytes: int, namespace_share: float) -> None:
        self.capacity_bytes = capacity_bytes
        self.quota = int(capacity_bytes * namespace_share)
        self.used_bytes = 0
        self._used_by: Counter[str] = Counter()
        self._handles = itertools.count(1)
        self._by_handle: dict[int, Entry] = {}
        self._doomed: dict[int, Entry] = {}
        self._freed: list[int] = []

    def __len__(self) -> int:
        """How many entries hold memory."""
        return len(self._by_handle)

    def used_by(self, namespace: str) -> int:
        return self._used_by[namespace]

    def find(self, handle: int) -> Entry | None:
        """The entry of a handle, unless it was deleted."""
        return None if handle in self._doomed else self._by_handle.get(handle)

    def place(self, entry: Entry) -> int:
        """Give an entry a handle that was never used before, and count its bytes."""
        handle = entry.handle = next(self._handles)
        self._by_handle[handle] = entry
        self.used_bytes += entry.nbytes
        self._used_by[entry.namespace] += entry.nbytes
        return handle

    def free(self, entry: Entry) -> None:
        """Give an entry's memory back; its handle is to be freed by whoever has the tensors."""
        assert entry.handle is not None
        del self._by_handle[entry.handle]
        self.used_bytes -= entry.nbytes
        self._used_by[entry.namespace] -= entry.nbytes
        self._freed.append(entry.handle)

    def discard(self, entry: Entry) -> None:
        """An entry was deleted: its memory is given back now, or once nobody reads it any more."""
        if entry.users:
            assert entry.handle is not None
            self._doomed[entry.handle] = entry
        elif entry.handle is not None:
            self.free(entry)

    def release(self, handle: int) -> None:
        """One that read the entry is done."""
        entry = self._by_handle[handle]
        entry.users -= 1
        if entry.users == 0 and handle in self._doomed:
            del self._doomed[handle]
            self.free(entry)

    @property
    def has_freed(self) -> bool:
        return bool(self._freed)

    def take_freed(self) -> list[int]:
        """Handles that were freed, each exactly once."""
        freed, self._freed = self._freed, []
        return freed

    def room(self, namespace: str, *, eventually: bool = False) -> int:
        """Bytes that a new entry of that namespace could take at the cost of others.

        `eventually`: once nothing is being computed, read or written any more, so that only pins stay.
        """
        free, own = self.capacity_bytes - self.used_bytes, self.quota - self._used_by[namespace]
        for entry in self._by_handle.values():
            if may_leave_memory(entry) or (eventually and not entry.pinned):
                free += entry.nbytes
                own += entry.nbytes if entry.namespace == namespace else 0
        return min(free, own)

    def has_room(self, nbytes: int, namespace: str) -> bool:
        """Whether `room` is at least that; looks at no entry where nothing need leave."""
        free = min(self.capacity_bytes - self.used_bytes, self.quota - self._used_by[namespace])
        return free >= nbytes or self.room(namespace) >= nbytes

    def victims(self, nbytes: int, namespace: str, entries: Iterable[Entry]) -> list[Entry] | None:
        """Which of `entries` must leave memory for a new one of that namespace; None where even that is not enough."""
        own_excess = self._used_by[namespace] + nbytes - self.quota
        excess = self.used_bytes + nbytes - self.capacity_bytes
        if own_excess <= 0 and excess <= 0:
            return []
        return make_way(filter(may_leave_memory, entries), namespace, own_excess, excess)

    def check(self, entries: Iterable[Entry]) -> list[str]:
        """Faults in the books, `entries` being all that were not deleted."""
        held = [entry for entry in (*entries, *self._doomed.values()) if entry.handle is not None]
        faults = []
        if (total := sum(entry.nbytes for entry in held)) != self.used_bytes:
            faults.append(f"entries hold {total} bytes but {self.used_bytes} are counted")
        by_namespace = Counter[str]()
        for entry in held:
            by_namespace[entry.namespace] += entry.nbytes
        if by_namespace != +self._used_by:
            faults.append(f"namespaces hold {dict(by_namespace)} bytes but {dict(+self._used_by)} are counted")
        faults += [f"a namespace uses {n} bytes of {self.quota}" for n in by_namespace.values() if n > self.quota]
        if self.used_bytes > self.capacity_bytes:
            faults.append(f"{self.used_bytes} bytes are used of {self.capacity_bytes}")
        if set(self._by_handle) != {entry.handle for entry in held}:
            faults.append("the table of handles does not match the entries")
        return faults + [f"entry {entry.handle} has {entry.users} users" for entry in held if entry.users < 0]
