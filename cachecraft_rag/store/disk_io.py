"""Carrying out orders on disk, on threads, so that nobody waits for a disk who does not need what it holds."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from cachecraft_rag.store.changes import Change, ChangeOwners, DiskOrders, DiskReport, Read, Remove, Write
from cachecraft_rag.store.directory import StoreFull
from cachecraft_rag.store.disk import DiskStore, Unreadable
from cachecraft_rag.store.memory import ChunkKv, HostMemoryStore

logger = logging.getLogger(__name__)

_READERS = 2


@dataclass(frozen=True, slots=True)
class _Loaded:
    handle: int
    kv: ChunkKv | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Changed:
    change: Change
    reason: str | None
    dropped: tuple[str, ...] = ()
    used_bytes: int | None = None


class DiskIo:
    """One thread makes changes, in order; others read. `collect` brings what was read into memory.

    With `ranks` above 1 a read is over only once it is settled: what one rank has and another has not is not used, and
    all begin to use it in the same step.
    """

    def __init__(self, disk: DiskStore, memory: HostMemoryStore, ranks: int = 1) -> None:
        self._alone = ranks == 1
        self._disk = disk
        self._memory = memory
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="cachecraft-read")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="cachecraft-write")
        self._events: queue.SimpleQueue[_Loaded | _Changed] = queue.SimpleQueue()
        self._loading: set[int] = set()
        self._reasons: dict[int, str] = {}

    def begin(self, orders: DiskOrders) -> None:
        """Take orders; returns at once. What is to be written must be in memory, and stay until it was reported."""
        for handle, reason in orders.settled.items():
            self._loading.discard(handle)
            if reason is not None:
                self._memory.free(handle)
                self._reasons[handle] = reason
        for read in orders.reads:
            self._loading.add(read.handle)
            self._readers.submit(self._run, partial(self._read, read))
        for change in orders.changes:
            kv = self._memory.get(change.handle) if isinstance(change, Write) else None
            self._writer.submit(self._run, partial(self._change, change, kv))

    def is_loading(self, handle: int) -> bool:
        return handle in self._loading

    def reason(self, handle: int) -> str | None:
        """Why an entry could not be read, where that was tried and failed."""
        return self._reasons.get(handle)

    def forget(self, handles: Iterable[int]) -> None:
        """These handles are not used any more."""
        for handle in handles:
            self._reasons.pop(handle, None)

    def collect(self, report: DiskReport, wait_seconds: float = 0.0) -> bool:
        """Add to `report` what was done since the last call, and say whether anything was.

        Waits so long at most for the first of it.
        """
        try:
            event = self._events.get(timeout=wait_seconds) if wait_seconds else self._events.get_nowait()
            while True:
                self._note(event, report)
                event = self._events.get_nowait()
        except queue.Empty:
            return report != DiskReport()

    def close(self) -> None:
        """Make all changes that were ordered, and end the threads. Reads that were not begun are left."""
        self._readers.shutdown(cancel_futures=True)
        self._writer.shutdown()

    def _note(self, event: _Loaded | _Changed, report: DiskReport) -> None:
        if isinstance(event, _Loaded):
            if self._alone:
                self._loading.discard(event.handle)
            if event.kv is not None:
                self._memory.put(event.handle, event.kv)
                report.loaded.append(event.handle)
            else:
                self._reasons[event.handle] = event.reason
                report.unreadable[event.handle] = event.reason
            return
        report.changed += 1
        report.dropped += event.dropped
        if event.used_bytes is not None:
            report.used_bytes = event.used_bytes
        if isinstance(event.change, Remove) and event.reason is None:
            report.removed.append(event.change.key)
        elif isinstance(event.change, Write) and event.reason is None:
            report.written.append(event.change.handle)
        elif isinstance(event.change, Write) and event.reason is not None:
            report.unwritten[event.change.handle] = event.reason
        elif event.reason is not None:
            logger.warning("%s failed: %s", event.change, event.reason)

    def _run(self, work: Callable[[], _Loaded | _Changed]) -> None:
        self._events.put(work())

    def _read(self, read: Read) -> _Loaded:
        try:
            kv = self._memory.allocate_stored(read.tokens)
            self._disk.read(read.key, kv.buffers())
        except Unreadable as error:
            return _Loaded(read.handle, None, str(error))
        except Exception as error:  # whatever it is, the chunk is computed
            logger.exception("reading %s failed", read.key)
            return _Loaded(read.handle, None, f"its stored file could not be read: {error!r:.80}")
        return _Loaded(read.handle, kv)

    def _change(self, change: Change, kv: ChunkKv | None) -> _Changed:
        try:
            dropped = self._make(change, kv)
            return _Changed(change, None, tuple(dropped), self._disk.directory.used_bytes())
        except StoreFull as error:
            return _Changed(change, f"the disk tier is full: {error.strerror}")
        except OSError as error:
            return _Changed(change, f"the disk refuses: {error.strerror}")
        except Exception as error:  # the thread must live on
            logger.exception("%s failed", type(change).__name__)
            return _Changed(change, repr(error))

    def _make(self, change: Change, kv: ChunkKv | None) -> list[str]:
        if isinstance(change, Remove):
            self._disk.remove([change.key])
            if change.damaged:
                self._disk.directory.recount()
        elif isinstance(change, ChangeOwners):
            self._disk.change_owners(change.key, add=change.add, remove=change.remove, pinned=change.pinned)
        else:
            assert kv is not None, "an entry to be written left memory"
            header = replace(change.header, model=self._disk.model, tensors=kv.specs())
            return self._disk.write(header, kv.buffers(), change.victims)
        return []
