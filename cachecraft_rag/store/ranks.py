"""Files of several tensor-parallel ranks: each has its own heads of a chunk, and one without the others is nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from cachecraft_rag.store.changes import DiskReport
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.header import EntryHeader


def rank_model(fingerprint: str, rank: int, ranks: int) -> str:
    """What names the folder of one rank; of a single one it is the model's fingerprint itself."""
    if ranks == 1:
        return fingerprint
    return hashlib.sha256(f"{fingerprint} rank {rank} of {ranks}".encode()).hexdigest()


class RankStores:
    """The files of all ranks, first to last, as one store: an entry is there where every rank has it."""

    def __init__(self, stores: Sequence[DiskStore]) -> None:
        self._stores = stores
        self.first = stores[0]
        self.directory = stores[0].directory

    def __len__(self) -> int:
        """How many ranks there are."""
        return len(self._stores)

    def has(self, key: str) -> bool:
        return all(store.path(key).exists() for store in self._stores)

    def scan(self) -> Iterator[EntryHeader]:
        """See `DiskStore.scan`; what some rank lacks is left out."""
        return (header for header in self.first.scan() if self.has(header.key))


class Agreement:
    """Reports of all ranks as one: what is done is what every rank has done, and what failed anywhere has failed."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._reads: dict[int, list[str | None]] = {}
        self._writes: dict[int, list[str | None]] = {}
        self._removed: Counter[str] = Counter()
        self._changed = [0] * ranks

    def add(self, reports: Mapping[int, DiskReport]) -> DiskReport:
        """What all agree on now. `reports`: by rank, each what is new there."""
        together = DiskReport()
        before = min(self._changed)
        for rank, report in reports.items():
            self._changed[rank] += report.changed
            reads = dict.fromkeys(report.loaded) | report.unreadable
            self._collect(self._reads, reads, together.loaded, together.unreadable)
            writes = dict.fromkeys(report.written) | report.unwritten
            self._collect(self._writes, writes, together.written, together.unwritten)
            for key in report.removed:
                self._removed[key] += 1
                if self._removed[key] == self._ranks:
                    del self._removed[key]
                    together.removed.append(key)
            together.dropped += report.dropped
            if report.used_bytes is not None:
                together.used_bytes = report.used_bytes
        together.changed = min(self._changed) - before
        return together

    def _collect(
        self,
        waiting: dict[int, list[str | None]],
        news: Mapping[int, str | None],
        done: list[int],
        failed: dict[int, str],
    ) -> None:
        for handle, reason in news.items():
            reasons = waiting.setdefault(handle, [])
            reasons.append(reason)
            if len(reasons) < self._ranks:
                continue
            del waiting[handle]
            why = next((one for one in reasons if one is not None), None)
            if why is None:
                done.append(handle)
            else:
                failed[handle] = why
