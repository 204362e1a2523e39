"""Faults of files and disks, made on purpose: for the soak test, and for tests of the store under a real engine."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_PAGE = 4096


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    """The size stays: what a file system may leave of a file after a power cut."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))


def flip_bit(path: Path) -> None:
    """One bit of the tensors."""
    with path.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(-1000, os.SEEK_END)
        file.write(bytes([byte ^ 16]))


def vanish(path: Path) -> None:
    path.unlink()


def fail_reading(path: Path) -> None:
    """It is there and cannot be opened, not even by root."""
    path.unlink()
    path.symlink_to(path.name)


FAULTS: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "zeroed": zero,
    "bit flipped": flip_bit,
    "vanished": vanish,
    "read fails": fail_reading,
}


@contextmanager
def full_disk(pid: int) -> Iterator[None]:
    """No file that a process writes may grow beyond a page, as if the disk were full."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (_PAGE, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
