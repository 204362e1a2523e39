"""Questions to the store that travel as requests, so that they reach the scheduler half under any executor."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from cachecraft_rag.store import Entry, KvIndex
from cachecraft_rag.store.device import DeviceReport
from cachecraft_rag.vllm.disk_tier import DiskTier
from cachecraft_rag.vllm.protocol import RequestParams


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What the worker half said last. `busy`: it has work in hand, so that its numbers are not the index's."""

    store_bytes: int
    device: DeviceReport
    device_capacity_bytes: int
    busy: bool


def run_control(index: KvIndex, params: RequestParams, worker: WorkerState, disk: DiskTier) -> dict[str, Any]:
    """The answer to a control request; a garbled one is answered with an `error`."""
    try:
        return _run(index, params, worker, disk)
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        return {"error": f"the control request {dict(params.control or {})!r:.80} is garbled: {error!r}"}


def _run(index: KvIndex, params: RequestParams, worker: WorkerState, disk: DiskTier) -> dict[str, Any]:
    """Carry out `params.control` for the request's namespace; the answer holds plain types only.

    Operations: `stats` (with `own`: of the namespace alone); `model` (its fingerprint, where there is a disk);
    `check`; `changes` (of the disk: how many were decided and made so far); `missing` (`chunks`: [id, digest,
    document id] each); `delete` and `pin` (`chunk_ids`, or `document_id`, or neither for all of the namespace; `pin`
    also takes `pinned`); `prefetch` (the same choice: have what is on disk read into memory).
    """
    control = dict(params.control or {})
    operation = control.get("op")
    if operation == "stats" and control.get("own"):
        return {name: value for name, value in asdict(index.stats(params.namespace)).items() if value is not None}
    if operation == "stats":
        disk_stats = {"disk_bytes": disk.used_bytes, "disk_capacity_bytes": disk.capacity_bytes}
        return {**asdict(index.stats()), "store_bytes": worker.store_bytes, **disk_stats, **_on_device(index, worker)}
    if operation == "model":
        return {"model": disk.model}
    if operation == "changes":
        return {"decided": disk.decided, "made": disk.made}
    if operation == "check":
        return {"faults": index.check() + _compare(index, worker)}
    if operation == "missing":
        return {"missing": _missing(index, params.namespace, control["chunks"], pinned=bool(control.get("pinned")))}
    if operation in ("delete", "pin", "prefetch"):
        disk.discover()
    if operation == "delete":
        document_id = control.get("document_id")
        if document_id is not None:
            removed = index.delete_document(params.namespace, document_id)
        else:
            removed = index.delete(_selector(params.namespace, control))
        disk.remove_files(removed)
        return {"deleted": _chunk_ids(removed)}
    if operation == "pin":
        chosen = list(filter(_selector(params.namespace, control), index))
        for entry in chosen:
            index.pin(entry, bool(control["pinned"]))
        return {"pinned": _chunk_ids(chosen)}
    if operation == "prefetch":
        on_disk = [entry for entry in filter(_selector(params.namespace, control), index) if entry.handle is None]
        return {"prefetched": _chunk_ids(entry for entry in on_disk if entry.ready and disk.bring(entry))}
    return {"error": f"unknown control operation {operation!r}"}


def segment_selector(params: RequestParams) -> Callable[[RequestParams], set[int]]:
    """Tells which segments of a request are chunks that a control request names; `params` are the latter's."""
    is_named = _names(params.namespace, dict(params.control or {}))

    def select(request: RequestParams) -> set[int]:
        return {
            number
            for number, (_, _, chunk_id, _, document_id) in enumerate(request.segments)
            if chunk_id is not None and is_named(request.namespace, chunk_id, (document_id,))
        }

    return select


def _chunk_ids(entries: Iterable[Entry]) -> list[str]:
    """Each chunk once, though it may have variants."""
    return list(dict.fromkeys(entry.chunk_id for entry in entries if entry.chunk_id is not None))


def _selector(namespace: str, control: dict[str, Any]) -> Callable[[Entry], bool]:
    is_named = _names(namespace, control)
    return lambda entry: is_named(entry.namespace, entry.chunk_id, entry.documents)


def _names(namespace: str, control: dict[str, Any]) -> Callable[[str, str | None, Collection[str | None]], bool]:
    """Whether a control request names a chunk of that namespace, id and documents."""
    document_id, chunk_ids = control.get("document_id"), control.get("chunk_ids")
    wanted = None if chunk_ids is None else set(chunk_ids)

    def is_named(of: str, chunk_id: str | None, documents: Collection[str | None]) -> bool:
        if of != namespace or (document_id is not None and document_id not in documents):
            return False
        return wanted is None or chunk_id in wanted

    return is_named


def _missing(index: KvIndex, namespace: str, chunks: list[list[str | None]], *, pinned: bool) -> list[int]:
    canonical = (entry for entry in index if entry.namespace == namespace and entry.seen is None)
    stored = {(entry.chunk_id, entry.digest): entry for entry in canonical if entry.chunk_id is not None}
    missing = []
    for number, (chunk_id, digest, document_id) in enumerate(chunks):
        assert chunk_id is not None
        entry = stored.get((chunk_id, digest))
        if entry is None or not entry.ready:
            missing.append(number)
            continue
        index.touch(entry, 1.0)
        if pinned:
            index.pin(entry, True)
        if document_id is not None:
            index.add_document(entry, document_id)
    return missing


def _on_device(index: KvIndex, worker: WorkerState) -> dict[str, int]:
    copied = [entry for handle in worker.device.handles if (entry := index.by_handle(handle)) is not None]
    return {
        "chunks_on_device": sum(entry.chunk_id is not None for entry in copied),
        "device_bytes": worker.device.used_bytes,
        "device_capacity_bytes": worker.device_capacity_bytes,
        "device_hits": worker.device.hits,
    }


def _compare(index: KvIndex, worker: WorkerState) -> list[str]:
    if worker.busy:
        return []
    faults = []
    indexed = sum(entry.nbytes for entry in index if entry.ready and entry.handle is not None)
    if indexed != worker.store_bytes:
        faults.append(f"the index counts {indexed} bytes but the worker holds {worker.store_bytes}")
    if worker.device.used_bytes > worker.device_capacity_bytes:
        faults.append(f"copies take {worker.device.used_bytes} bytes of {worker.device_capacity_bytes} on the device")
    strays = [handle for handle in worker.device.handles if index.by_handle(handle) is None]
    return faults + [f"the device has a copy of entry {handle}, which is not in memory" for handle in strays]
