"""The folder that holds the disk tier: one lock, one count of bytes, private permissions, no half-written files.

Any number of processes may read and write it at once. Entries are immutable files named by their key, and appear by
rename, so readers take no lock. Whatever changes the count of bytes happens under the lock, so that the byte budget
holds for all processes together. A writer holds a `flock` on its unfinished file: one that nobody holds was left
behind by a process that died, and may be removed.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from cachecraft_rag.errors import StoreError
from cachecraft_rag.store.owners import owners_path, read_owners

ENTRY_SUFFIX = ".safetensors"
PARTIAL_SUFFIX = ".partial"
MODEL_FILE = "model.json"

logger = logging.getLogger(__name__)


class StoreFull(OSError):  # noqa: N818
    """The byte budget has no room, even after evicting what may be evicted."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A file being written, and the files that were evicted to make room for it."""

    file: BinaryIO
    evicted: list[Path]


class StoreDirectory:
    """`capacity_bytes`: of all models' files together, None for no limit. Read-only, nothing is ever written."""

    def __init__(self, root: Path, capacity_bytes: int | None = None, *, read_only: bool = False) -> None:
        """Raises `StoreError` where the folder cannot be made or used."""
        self.root = root
        self.capacity_bytes = capacity_bytes
        self.read_only = read_only
        try:
            if not read_only:
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
            mode = root.stat().st_mode
            os.listdir(root)  # noqa: PTH208 - fails where it may not be read
        except OSError as error:
            raise StoreError(f"the store {root} cannot be used: {error.strerror}; give a folder of your own") from error
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            logger.warning("%s is open to other users of this machine; chmod 700 closes it", root)
        self._lock = FileLock(root / "lock", mode=0o600, poll_interval=0.01)
        self._usage = root / "usage"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one thread of one process is in here at a time; may be nested."""
        assert not self.read_only, "a read-only store takes no lock"
        with self._lock:
            yield

    def models(self) -> list[Path]:
        """The folders of all models."""
        return sorted(path for path in self.root.iterdir() if path.is_dir())

    def add_model(self, name: str, description: str | None) -> Path:
        """The folder of one model; `description` is for people, None where it is not known."""
        folder = self.root / name
        if self.read_only:
            return folder
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if description is not None and not (folder / MODEL_FILE).exists():
                content = description.encode()
                with self.writing(folder / MODEL_FILE, len(content)) as unfinished:
                    unfinished.file.write(content)
        except OSError as error:
            logger.warning("%s cannot be written: %s", folder, error.strerror)
        return folder

    def used_bytes(self) -> int:
        """Bytes of all files, the unfinished ones included. Counted afresh where the count is lost."""
        try:
            return int(self._usage.read_text())
        except (OSError, ValueError):
            return self.recount()

    def recount(self) -> int:
        """Count all files, and note the sum unless read-only."""
        if self.read_only:
            return self.counted_bytes()
        with self.locked():
            used = self.counted_bytes()
            self._note(used)
        return used

    @contextmanager
    def writing(self, target: Path, nbytes: int, victims: Iterable[Path] = ()) -> Iterator[Unfinished]:
        """Write a file of exactly `nbytes` that takes its name when the block ends, and vanishes where it fails.

        Room is made first: `victims` go in their order as far as needed, then whatever was used longest ago.
        Raises `StoreFull`, or OSError where the disk is.
        """
        path = target.with_name(f"{secrets.token_hex(8)}{PARTIAL_SUFFIX}")
        try:
            with ExitStack() as stack:
                with self.locked():
                    evicted = self._make_room(nbytes, victims)
                    used = self.used_bytes()  # first, since a lost count is made from the files
                    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
                    file = stack.enter_context(os.fdopen(descriptor, "wb", buffering=0))
                    fcntl.flock(file, fcntl.LOCK_EX)
                    os.posix_fallocate(descriptor, 0, nbytes)
                    self._note(used + nbytes)
                yield Unfinished(file, evicted)
                with self.locked():
                    used = self.used_bytes() - _size(target)
                    path.replace(target)
                    self._note(used)
        except BaseException:
            with self.locked():
                path.unlink(missing_ok=True)
                self.recount()
            raise

    def remove(self, paths: Iterable[Path]) -> list[Path]:
        """Remove files and count them off; returns those that were there."""
        removed = []
        with self.locked():
            used = self.used_bytes()
            for path in paths:
                size = _size(path)
                with suppress(FileNotFoundError):
                    path.unlink()
                    removed.append(path)
                    used -= size
            if removed:
                self._note(used)
        return removed

    def clean(self) -> list[Path]:
        """Remove what dead writers left behind; returns the files that went."""
        with self.locked():
            partial = [path for folder in self.models() for path in folder.glob(f"*{PARTIAL_SUFFIX}")]
            return self.remove([path for path in partial if is_abandoned(path)])

    def counted_bytes(self) -> int:
        """What there is, whatever was noted."""
        return sum(_size(path) for folder in self.models() for path in folder.iterdir())

    def _note(self, used: int) -> None:
        descriptor = os.open(self._usage, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            length = os.pwrite(descriptor, f"{used:020}\n".encode(), 0)  # of one length: nobody reads half a number
            os.ftruncate(descriptor, length)
        finally:
            os.close(descriptor)

    def _make_room(self, nbytes: int, victims: Iterable[Path]) -> list[Path]:
        if self.capacity_bytes is None:
            return []
        evicted: list[Path] = []
        excess = self.used_bytes() + nbytes - self.capacity_bytes
        for path in itertools.chain(victims, self._oldest()):
            if excess <= 0:
                break
            pair = [path, owners_path(path)]
            size = sum(map(_size, pair))
            if self.remove(pair):
                evicted.append(path)
                excess -= size
        if excess > 0:
            raise StoreFull(errno.ENOSPC, f"{nbytes} bytes are {excess} more than the store may hold beside what stays")
        return evicted

    def _oldest(self) -> Iterator[Path]:
        """Entries of all models that nobody has pinned, the one used longest ago first."""
        entries = [path for folder in self.models() for path in folder.glob(f"*{ENTRY_SUFFIX}")]
        for path in sorted(entries, key=_mtime):
            if not read_owners(path).pinned:
                yield path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def is_abandoned(path: Path) -> bool:
    """Whether the writer of an unfinished file has died."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return path.exists()
    return True
