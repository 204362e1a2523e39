"""The entries of one model on disk, each a file of its own: read whole or not at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from cachecraft_rag.store.container import Damaged, head_bytes, read_head, read_into
from cachecraft_rag.store.directory import ENTRY_SUFFIX, StoreDirectory
from cachecraft_rag.store.header import EntryHeader, UnknownVersion, data_checksum
from cachecraft_rag.store.owners import Owners, owners_path, read_owners

logger = logging.getLogger(__name__)


class Unreadable(Exception):  # noqa: N818
    """An entry cannot be read; the message says why, in words for a report.

    `useless`: and never can be, by no version of this package.
    """

    def __init__(self, error: OSError | Damaged) -> None:
        super().__init__(_reason(error))
        self.useless = isinstance(error, Damaged) and not isinstance(error, UnknownVersion)


class DiskStore:
    """`model`: fingerprint of all that the numbers depend on beside namespace and token ids."""

    def __init__(self, directory: StoreDirectory, model: str, description: str | None = None) -> None:
        self.directory = directory
        self.model = model
        self.folder = directory.add_model(model, description)

    def path(self, key: str) -> Path:
        return self.folder / f"{key}{ENTRY_SUFFIX}"

    def keys(self) -> Iterator[str]:
        """Of all files of entries, whatever is in them."""
        return (path.name.removesuffix(ENTRY_SUFFIX) for path in self.folder.glob(f"*{ENTRY_SUFFIX}"))

    def scan(self) -> Iterator[EntryHeader]:
        """Headers of all entries, the one used longest ago first. What cannot be read is logged and left out."""
        for key in sorted(self.keys(), key=lambda key: _last_use(self.path(key))):
            try:
                yield self.header(key)
            except Unreadable as error:
                logger.warning("%s is passed over: %s", self.path(key), error)

    def header(self, key: str) -> EntryHeader:
        """What an entry says of itself, with its documents as they are now. Raises `Unreadable`."""
        try:
            with self.path(key).open("rb", buffering=0) as file:
                header = self._checked_header(key, file)
        except (OSError, Damaged) as error:
            raise Unreadable(error) from error
        documents = read_owners(self.path(key)).documents
        return header if documents is None else replace(header, documents=tuple(sorted(documents)))

    def read(self, key: str, buffers: Sequence[memoryview], *, touch: bool = True) -> EntryHeader:
        """Fill one buffer for each tensor, and check their bytes; without `touch` it is no use. Raises `Unreadable`."""
        path = self.path(key)
        try:
            with path.open("rb", buffering=0) as file:
                header = self._checked_header(key, file)
                sizes = [tensor.nbytes for tensor in header.tensors]
                if sizes != [len(buffer) for buffer in buffers]:
                    raise Damaged(f"it holds {sum(sizes)} bytes of KV where {sum(map(len, buffers))} were expected")
                for buffer in buffers:
                    read_into(file, buffer)
        except (OSError, Damaged) as error:
            raise Unreadable(error) from error
        if data_checksum(*buffers) != header.data_checksum:
            raise Unreadable(Damaged("its bytes do not fit their checksum"))
        if touch and not self.directory.read_only:
            with suppress(OSError):
                os.utime(path)
        return header

    def write(self, header: EntryHeader, buffers: Sequence[memoryview], victims: Iterable[str] = ()) -> list[str]:
        """Store an entry; its checksum is made here. Room is made first, of `victims` before others.

        Returns the keys of this model that were evicted for it. Raises OSError: the disk is full, or `StoreFull`.
        """
        header = replace(header, data_checksum=data_checksum(*buffers))
        head = head_bytes(header.to_metadata(), header.tensors)
        nbytes = len(head) + header.data_bytes
        with self.directory.writing(self.path(header.key), nbytes, map(self.path, victims)) as unfinished:
            for buffer in (memoryview(head), *buffers):
                _write_all(unfinished.file.fileno(), buffer)
        return [p.name.removesuffix(ENTRY_SUFFIX) for p in unfinished.evicted if p.parent == self.folder]

    def remove(self, keys: Iterable[str]) -> list[str]:
        """Remove entries with what belongs to them; returns the keys of those that were there."""
        paths = [self.path(key) for key in keys]
        removed = self.directory.remove([*paths, *map(owners_path, paths)])
        return [path.name.removesuffix(ENTRY_SUFFIX) for path in removed if path.name.endswith(ENTRY_SUFFIX)]

    def change_owners(
        self, key: str, *, add: Iterable[str] = (), remove: Iterable[str] = (), pinned: bool | None = None
    ) -> None:
        """Change the documents and the pin of an entry; nothing happens where it is not there. Raises OSError."""
        path = self.path(key)
        with self.directory.locked(), suppress(Unreadable):
            documents = {*self.header(key).documents, *add} - set(remove)
            before = read_owners(path)
            owners = Owners(frozenset(documents), before.pinned if pinned is None else pinned)
            content = owners.to_bytes()
            with self.directory.writing(owners_path(path), len(content)) as unfinished:
                unfinished.file.write(content)

    def _checked_header(self, key: str, file: BinaryIO) -> EntryHeader:
        container = read_head(file)
        header = EntryHeader.from_container(container)
        if (header.key, header.model) != (key, self.model):
            raise Damaged("it is another entry's")
        expected, size = container.data_start + header.data_bytes, os.fstat(file.fileno()).st_size
        if size != expected:
            raise Damaged(f"it has {size} bytes instead of {expected}")
        return header


def _write_all(descriptor: int, buffer: memoryview) -> None:
    done = 0
    while done < len(buffer):
        done += os.write(descriptor, buffer[done:])


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _reason(error: OSError | Damaged) -> str:
    if isinstance(error, FileNotFoundError):
        return "its stored file has vanished"
    if isinstance(error, UnknownVersion):
        return f"its stored file is of another version: {error}"
    if isinstance(error, Damaged):
        return f"its stored file is damaged: {error}"
    return f"its stored file cannot be read: {error.strerror}"
