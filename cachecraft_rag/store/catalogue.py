"""What a store on disk holds, across models: listed, selected, summed up and removed without an engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.store.directory import ENTRY_SUFFIX, StoreDirectory
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.header import EntryHeader
from cachecraft_rag.store.owners import Owners, owners_path, read_owners

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Item:
    """One entry on disk. `nbytes`: of its files; `last_use`: seconds since 1970, when it was read or written last."""

    path: Path
    header: EntryHeader
    owners: Owners
    nbytes: int
    last_use: float

    @property
    def documents(self) -> frozenset[str]:
        return self.owners.documents if self.owners.documents is not None else frozenset(self.header.documents)

    def to_dict(self) -> dict[str, Any]:
        """Without the key, which is private, and without token ids, which are the text."""
        return {
            "model": self.header.model,
            "namespace": self.header.namespace,
            "chunk_id": self.header.chunk_id,
            "documents": sorted(self.documents),
            "behind": len(self.header.seen.keys) if self.header.seen is not None else 0,
            "tokens": int(self.header.token_ids.size),
            "bytes": self.nbytes,
            "pinned": self.owners.pinned,
            "last_use": self.last_use,
        }


@dataclass(frozen=True, slots=True)
class Selection:
    """Which entries are meant; what is None or empty does not narrow. `model`: the beginning of a fingerprint."""

    namespace: str | None = None
    document: str | None = None
    chunks: frozenset[str] = frozenset()
    model: str | None = None

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    def __contains__(self, item: Item) -> bool:
        header = item.header
        return (
            (self.namespace is None or header.namespace == self.namespace)
            and (self.document is None or self.document in item.documents)
            and (not self.chunks or header.chunk_id in self.chunks)
            and (self.model is None or header.model.startswith(self.model))
        )


@dataclass
class Removed:
    """What went: entries, other files, bytes of all."""

    entries: int = 0
    other_files: int = 0
    nbytes: int = 0

    def to_dict(self) -> dict[str, int]:
        return {"entries": self.entries, "other_files": self.other_files, "bytes": self.nbytes}

    def __str__(self) -> str:
        return f"{self.entries} entries and {self.other_files} other files removed, {self.nbytes:,} bytes"


@dataclass
class Totals:
    """`chunks` leaves out heads and stand-in passages, which are kept with them, and variants."""

    chunks: int = 0
    variants: int = 0
    tokens: int = 0
    nbytes: int = 0
    pinned: int = 0
    documents: set[str] = field(default_factory=set)

    def add(self, item: Item) -> None:
        self.chunks += item.header.chunk_id is not None and item.header.seen is None
        self.variants += item.header.seen is not None
        self.tokens += int(item.header.token_ids.size)
        self.nbytes += item.nbytes
        self.pinned += item.owners.pinned
        self.documents |= item.documents

    def to_dict(self) -> dict[str, int]:
        counts = {"chunks": self.chunks, "variants": self.variants}
        counts |= {"documents": len(self.documents), "tokens": self.tokens}
        return {**counts, "bytes": self.nbytes, "pinned": self.pinned}


def stores(directory: StoreDirectory) -> Iterator[DiskStore]:
    """The store of every model."""
    return (DiskStore(directory, folder.name) for folder in directory.models())


def items(directory: StoreDirectory, selection: Selection | None = None) -> Iterator[Item]:
    """Entries that can be read, by model and then by last use; the others are for `audit`."""
    for store in stores(directory):
        for header in store.scan():
            path = store.path(header.key)
            try:
                status = path.stat()
                owners = read_owners(path)
                nbytes = status.st_size + (owners_path(path).stat().st_size if owners != Owners() else 0)
            except OSError:
                continue  # it went meanwhile
            item = Item(path, header, owners, nbytes, status.st_mtime)
            if selection is None or item in selection:
                yield item


def summary(directory: StoreDirectory) -> dict[tuple[str, str], Totals]:
    """Totals by model and namespace."""
    totals: dict[tuple[str, str], Totals] = {}
    for item in items(directory):
        totals.setdefault((item.header.model, item.header.namespace), Totals()).add(item)
    return totals


def remove(directory: StoreDirectory, selection: Selection, *, everything: bool = False) -> Removed:
    """Remove what is selected. Of a document, only what no other document shares; the rest forgets it.

    Raises `InvalidInput` for a selection of everything, unless that is said.
    """
    if selection.is_everything and not everything:
        raise InvalidInput("nothing was selected: name chunks, a document, a namespace or a model, or say --all")
    gone = []
    for item in items(directory, selection):
        if selection.document is not None and item.documents != {selection.document}:
            store = DiskStore(directory, item.path.parent.name)
            store.change_owners(item.header.key, remove=[selection.document])
        else:
            gone.append(item)
    return _remove(directory, gone)


def collect_garbage(
    directory: StoreDirectory, *, max_bytes: int | None = None, older_than_days: float | None = None
) -> Removed:
    """Remove what dead writers left, entries not used for so long, and the oldest until the rest fits. Pins stay."""
    removed = Removed(other_files=len(directory.clean()))
    found = sorted((item for item in items(directory) if not item.owners.pinned), key=lambda item: item.last_use)
    if older_than_days is not None:
        limit = time.time() - older_than_days * _DAY
        _add(removed, _remove(directory, [item for item in found if item.last_use < limit]))
    if max_bytes is not None:
        excess = directory.recount() - max_bytes
        victims = list(_until(found, lambda nbytes: nbytes >= excess)) if excess > 0 else []
        _add(removed, _remove(directory, victims))
    return removed


def _until(found: Iterable[Item], enough: Callable[[int], bool]) -> Iterator[Item]:
    nbytes = 0
    for item in found:
        if enough(nbytes):
            return
        if item.path.exists():
            nbytes += item.nbytes
            yield item


def _remove(directory: StoreDirectory, gone: Iterable[Item]) -> Removed:
    removed = Removed()
    for item in gone:
        paths = directory.remove([item.path, owners_path(item.path)])
        if any(path.name.endswith(ENTRY_SUFFIX) for path in paths):
            removed.entries += 1
            removed.nbytes += item.nbytes
    return removed


def _add(total: Removed, more: Removed) -> None:
    total.entries += more.entries
    total.other_files += more.other_files
    total.nbytes += more.nbytes
