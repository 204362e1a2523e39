"""The disk tier as the scheduler half sees it: what is there, what is read and written. It decides, the worker does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cachecraft_rag.report import NOT_STORED
from cachecraft_rag.store import Entry, KeyMaker, KvIndex
from cachecraft_rag.store.changes import DiskOrders, DiskReport, Read, Write
from cachecraft_rag.store.directory import StoreDirectory
from cachecraft_rag.store.disk import DiskStore, Unreadable
from cachecraft_rag.store.entry import EntrySize
from cachecraft_rag.store.header import EntryHeader
from cachecraft_rag.store.owners import read_owners
from cachecraft_rag.store.ranks import Agreement, RankStores, rank_model
from cachecraft_rag.vllm.settings import ConnectorSettings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Found:
    """What there is of a key; without an entry, `reason` says why."""

    entry: Entry | None
    reason: str = NOT_STORED


class DiskTier:
    """The index's entries on disk. With `stores` None there is no disk tier, and nothing happens.

    `namespace_share`: how much of the disk budget one namespace may take.
    """

    def __init__(
        self, index: KvIndex, stores: RankStores | None, size: EntrySize, namespace_share: float = 1.0
    ) -> None:
        self._namespace_share = namespace_share
        self._index = index
        self._store = stores
        self._ranks = len(stores) if stores is not None else 1
        self._agreement = Agreement(self._ranks)
        self._settled: dict[int, str | None] = {}
        self._size = size
        self._reads: list[Read] = []
        self._reading: set[int] = set()
        self._taken = 0
        self.made = 0  # of the changes that were decided, in that order: carried out, or failed
        self._complained = False
        self.used_bytes = 0
        if stores is not None:
            if not stores.directory.read_only:
                stores.directory.clean()
            self.used_bytes = stores.directory.recount()
            for header in stores.scan():
                self._add(stores.first, header)

    @property
    def decided(self) -> int:
        """How many changes were decided so far."""
        return self._taken + len(self._index.changes) if self._writable is not None else 0

    @property
    def pending(self) -> int:
        """Changes that were decided and not yet made."""
        return self.decided - self.made

    @property
    def _writable(self) -> RankStores | None:
        return None if self._store is None or self._store.directory.read_only else self._store

    @property
    def model(self) -> str | None:
        """Fingerprint of the model, which its folder is named by."""
        return self._store.first.model if self._store is not None else None

    @property
    def is_reading(self) -> bool:
        """Whether an entry is on its way into memory, which its bytes are counted in already."""
        return bool(self._reading)

    @property
    def capacity_bytes(self) -> int | None:
        return self._store.directory.capacity_bytes if self._store is not None else 0

    def find(self, key: str) -> Found:
        """Look a key up; an entry that another process has stored meanwhile is found, too."""
        entry = self._index.get(key)
        if entry is not None or self._store is None:
            return Found(entry)
        if not self._store.has(key):
            if self._writable is None:  # nobody will report that it is gone; another process may write it again
                self._index.changes.removed(key)
            return Found(None)
        if self._index.changes.is_leaving(key):
            return Found(None)
        first = self._store.first
        try:
            return Found(self._add(first, first.header(key)))
        except Unreadable as error:
            logger.warning("%s is passed over: %s", first.path(key), error)
            if error.useless:
                self._index.changes.remove(key, damaged=True)
            return Found(None, f"{NOT_STORED}: {error}")

    def discover(self) -> None:
        """Take up all that other processes have stored since."""
        for key in self._store.first.keys() if self._store is not None else ():
            self.find(key)

    def remove_files(self, removed: Iterable[Entry]) -> None:
        """Of entries that were removed, have files go that the index knows nothing of: other processes wrote them."""
        for entry in removed:
            if self._writable is not None and not entry.on_disk and self._writable.has(entry.key):
                self._index.changes.remove(entry.key)

    def bring(self, entry: Entry) -> bool:
        """Have an entry read into memory unless it is there or on its way; False where memory has no room."""
        if entry.handle is not None:
            return True
        handle = self._index.promote(entry)
        if handle is None:
            return False
        self._index.acquire(entry)  # until it was read
        self._reading.add(handle)
        self._reads.append(Read(handle, entry.key, entry.token_ids.size))
        return True

    def write(self, handle: int) -> None:
        """Have an entry written that memory holds now."""
        entry = self._index.by_handle(handle)
        store = self._writable
        if entry is None or store is None or entry.on_disk:
            return
        if not self._keep_quota(entry):
            return
        header = EntryHeader(
            key=entry.key,
            model=store.first.model,
            namespace=entry.namespace,
            token_ids=entry.token_ids,
            cached_at=entry.cached_at,
            chunk_id=entry.chunk_id,
            digest=entry.digest,
            documents=tuple(sorted(entry.documents)),
            tensors=(),
            data_checksum="",
            seen=entry.seen,
        )
        self._index.order_write(entry, Write(handle, header, self._victims(entry.file_bytes)))
        if entry.pinned:
            self._index.changes.pin(entry)

    def take_orders(self) -> DiskOrders:
        """What the worker half must read and change, in this step."""
        changes = self._index.changes.take()
        if self._writable is None:
            changes = []
        orders = DiskOrders(self._reads, changes, self._settled)
        self._taken += len(changes)
        self._reads, self._settled = [], {}
        return orders

    def on_report(self, reports: Mapping[int, DiskReport]) -> None:
        """`reports`: by rank."""
        if self._store is None:
            return
        report = self._agreement.add(reports)
        if self._ranks > 1:
            self._settled |= dict.fromkeys(report.loaded) | report.unreadable
        self.made += report.changed
        if report.used_bytes is not None:
            self.used_bytes = report.used_bytes
        self._reading -= {*report.loaded, *report.unreadable}
        for handle in report.loaded:
            self._index.release(handle)
        for handle in report.unreadable:
            self._index.abort(handle)
            self._index.release(handle)
        for handle in report.written:
            self._complained = False
            self._index.release(handle)
        for handle, reason in report.unwritten.items():
            if not self._complained:
                logger.warning("chunks are kept in memory only: %s", reason)
                self._complained = True
            entry = self._index.by_handle(handle)
            if entry is not None:
                self._leave_disk(entry.key)
            self._index.release(handle)
        for key in report.removed:
            self._index.changes.removed(key)
        for key in report.dropped:
            self._leave_disk(key)

    def _leave_disk(self, key: str) -> None:
        """A rank has no file of that key any more, so those of the others are for nothing."""
        self._index.left_disk(key)
        if self._ranks > 1:
            self._index.changes.remove(key)

    def _add(self, store: DiskStore, header: EntryHeader) -> Entry:
        return self._index.add_on_disk(
            header.key,
            namespace=header.namespace,
            token_ids=header.token_ids,
            nbytes=self._size.of(header.token_ids.size),
            cached_at=header.cached_at,
            chunk_id=header.chunk_id,
            digest=header.digest,
            documents=header.documents,
            seen=header.seen,
            pinned=read_owners(store.path(header.key)).pinned,
        )

    def _keep_quota(self, entry: Entry) -> bool:
        """Make room among its namespace's own files; False where that cannot be."""
        if self._namespace_share == 1.0 or self.capacity_bytes is None:
            return True
        quota = int(self.capacity_bytes * self._namespace_share) // self._ranks - entry.file_bytes
        for key in self._index.victims_on_disk(self._index.bytes_on_disk(entry.namespace) - quota, entry.namespace):
            self._index.evict_file(key)
        return self._index.bytes_on_disk(entry.namespace) <= quota

    def _victims(self, nbytes: int) -> tuple[str, ...]:
        """Who should leave the disk for an entry of `nbytes`, and for as much again that may be on its way."""
        capacity = self.capacity_bytes
        if capacity is None or self.used_bytes + (self._taken - self.made + 1) * nbytes * 2 * self._ranks <= capacity:
            return ()
        return tuple(self._index.victims_on_disk(2 * nbytes))


def open_disk(settings: ConnectorSettings, keys: KeyMaker, rank: int = 0, ranks: int = 1) -> DiskStore | None:
    """The store on disk of this model on one rank; None where no folder is given."""
    if settings.store_dir is None:
        return None
    directory = StoreDirectory(Path(settings.store_dir), settings.disk_store_bytes, read_only=settings.read_only)
    return DiskStore(directory, rank_model(keys.fingerprint, rank, ranks), keys.description)


def open_disks(settings: ConnectorSettings, keys: KeyMaker, ranks: int = 1) -> RankStores | None:
    """The stores of all ranks; None where no folder is given."""
    stores = [open_disk(settings, keys, rank, ranks) for rank in range(ranks)]
    return RankStores([store for store in stores if store is not None]) if stores[0] is not None else None
