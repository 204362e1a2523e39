"""Checking a store on disk: every byte of every entry, and that nothing lies about that belongs to none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cachecraft_rag.store.directory import ENTRY_SUFFIX, PARTIAL_SUFFIX, StoreDirectory, is_abandoned
from cachecraft_rag.store.disk import DiskStore, Unreadable
from cachecraft_rag.store.owners import OWNERS_SUFFIX, owners_path

_CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class Fault:
    """`path`: the file in question, which `repair` removes; None where it is only the count that is wrong."""

    path: Path | None
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}" if self.path is not None else self.reason


@dataclass(frozen=True, slots=True)
class Audit:
    entries: int
    faults: tuple[Fault, ...]


def audit(directory: StoreDirectory) -> Audit:
    """Read everything. Entries that other processes remove meanwhile are no faults."""
    faults = []
    entries = 0
    for folder in directory.models():
        store = DiskStore(directory, folder.name)
        for path in sorted(folder.glob(f"*{ENTRY_SUFFIX}")):
            entries += 1
            reason = _entry_fault(store, path.name.removesuffix(ENTRY_SUFFIX))
            if reason is not None and os.path.lexists(path):
                faults.append(Fault(path, reason))
        faults += _leftovers(folder)
    if (fault := _count_fault(directory)) is not None:
        faults.append(fault)
    return Audit(entries, tuple(faults))


def repair(directory: StoreDirectory, found: Audit) -> None:
    """Remove the files with faults, and count afresh. What was removed is computed again when it is needed."""
    paths = [fault.path for fault in found.faults if fault.path is not None and not fault.path.is_dir()]
    directory.remove([*paths, *(owners_path(path) for path in paths if path.name.endswith(ENTRY_SUFFIX))])
    directory.recount()


def _entry_fault(store: DiskStore, key: str) -> str | None:
    try:
        header = store.header(key)
        store.read(key, [memoryview(bytearray(tensor.nbytes)) for tensor in header.tensors], touch=False)
    except Unreadable as error:
        return str(error)
    return None


def _leftovers(folder: Path) -> Iterator[Fault]:
    for path in sorted(folder.glob(f"*{PARTIAL_SUFFIX}")):
        if is_abandoned(path):
            yield Fault(path, "its writer died")
    for path in sorted(folder.glob(f"*{OWNERS_SUFFIX}")):
        if not path.with_name(path.name.removesuffix(OWNERS_SUFFIX) + ENTRY_SUFFIX).exists():
            yield Fault(path, "its entry is gone")


def _count_fault(directory: StoreDirectory) -> Fault | None:
    with directory.locked():  # others may be writing
        noted, counted = directory.used_bytes(), directory.counted_bytes()
    return None if noted == counted else Fault(None, f"{noted} bytes were counted where there are {counted}")
