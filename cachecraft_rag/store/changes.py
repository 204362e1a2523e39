"""What is to be done on disk, and how it went: plain data, since deciding and doing are in different processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cachecraft_rag.store.header import EntryHeader


@dataclass(frozen=True, slots=True)
class Read:
    """Bring an entry of `tokens` tokens into memory, under `handle`."""

    handle: int
    key: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Write:
    """Write what memory holds under `handle`. `victims`: keys to evict first, in this order, as far as needed.

    The `header` has no tensors and no checksum yet.
    """

    handle: int
    header: EntryHeader
    victims: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remove:
    """`damaged`: the file is not as it was written, or gone, so that its bytes are to be counted afresh."""

    key: str
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class ChangeOwners:
    """`pinned` None leaves the pin as it is."""

    key: str
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    pinned: bool | None = None


Change = Write | Remove | ChangeOwners


@dataclass
class DiskOrders:
    """Reads may overtake each other; changes are made one after the other, in this order.

    `settled`: of several ranks, reads that are over on every one of them; handle to why it failed somewhere, or None.
    """

    reads: list[Read] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    settled: dict[int, str | None] = field(default_factory=dict)


@dataclass
class DiskReport:
    """What came of orders since the last report.

    `unreadable`, `unwritten`: handle to reason. `removed`: keys as ordered, `dropped`: keys that were evicted to make
    room for others. `changed`: how many changes were made or failed. `used_bytes`: of the whole store, None where
    nothing was changed.
    """

    loaded: list[int] = field(default_factory=list)
    unreadable: dict[int, str] = field(default_factory=dict)
    written: list[int] = field(default_factory=list)
    unwritten: dict[int, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    changed: int = 0
    used_bytes: int | None = None
