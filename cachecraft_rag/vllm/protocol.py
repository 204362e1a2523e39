"""What travels between the front end, the scheduler half and the worker half."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorWorkerMetadata

from cachecraft_rag.reuse import Plan, SelectionPolicy
from cachecraft_rag.reuse.policies import recomputes_all
from cachecraft_rag.store.changes import DiskOrders, DiskReport
from cachecraft_rag.store.device import DeviceReport
from cachecraft_rag.store.keys import token_bytes
from cachecraft_rag.store.seen import AttentionStatistics

# The scheduler half of a preempted request plans afresh, so a plan is named by its request and a serial number.
PlanId = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PlanMessage:
    """One plan with what the worker needs to carry it out.

    `token_ids`: ids of positions 0 to `plan.end`; `block_ids`: the request's block table; `namespace`: whose it is.
    """

    plan_id: PlanId
    plan: Plan
    token_ids: npt.NDArray[np.int64]
    block_ids: npt.NDArray[np.int64]
    namespace: str = ""


@dataclass
class ConnectorMetadata(KVConnectorMetadata):
    """Scheduler half to worker half, each step. Freed handles come first, then the disk, new plans, cancellations."""

    freed: list[int] = field(default_factory=list)
    cancelled: list[PlanId] = field(default_factory=list)
    plans: list[PlanMessage] = field(default_factory=list)
    disk: DiskOrders = field(default_factory=DiskOrders)


@dataclass(frozen=True, slots=True)
class PlanResult:
    """How a plan went. `missing`: handles whose tensors were not there, so that their tokens were computed, and why.

    `chosen`: what was computed in the end, where the choice had to wait; `selection_tokens`: rows that were run to make
    it, in tokens through all layers.
    """

    staging_seconds: float
    compute_seconds: float
    slices: int
    computed_tokens: int
    missing: Mapping[int, str] = field(default_factory=dict)
    cancelled: bool = False
    chosen: npt.NDArray[np.int64] | None = None
    selection_tokens: float = 0.0


@dataclass
class WorkerMetadata(KVConnectorWorkerMetadata):
    """Worker half to scheduler half, each step: plans that ended, captures that are complete, news from the disk.

    `statistics`: of the variants among `stored`; `disk`: of this `rank`, `others`: of those whose reports were added.
    """

    results: dict[PlanId, PlanResult] = field(default_factory=dict)
    stored: list[int] = field(default_factory=list)
    statistics: dict[int, AttentionStatistics] = field(default_factory=dict)
    store_bytes: int = 0
    rank: int = 0
    disk: DiskReport = field(default_factory=DiskReport)
    others: dict[int, DiskReport] = field(default_factory=dict)
    device: DeviceReport = field(default_factory=DeviceReport)

    @property
    def disks(self) -> dict[int, DiskReport]:
        """News from the disk by rank."""
        return {self.rank: self.disk, **self.others}

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerMetadata:
        """Ranks follow the same plans: times are the slowest rank's, an entry is stored once every rank has it.

        Bytes are those of one rank, as the index counts them. News from the disk are kept apart, since ranks read and
        write each at its own pace.
        """
        assert isinstance(other, WorkerMetadata)
        results = dict(self.results)
        for plan_id, theirs in other.results.items():
            ours = results.get(plan_id, theirs)
            results[plan_id] = PlanResult(
                staging_seconds=max(ours.staging_seconds, theirs.staging_seconds),
                compute_seconds=max(ours.compute_seconds, theirs.compute_seconds),
                slices=max(ours.slices, theirs.slices),
                computed_tokens=max(ours.computed_tokens, theirs.computed_tokens),
                missing={**theirs.missing, **ours.missing},
                cancelled=ours.cancelled or theirs.cancelled,
                chosen=ours.chosen,
                selection_tokens=max(ours.selection_tokens, theirs.selection_tokens),
            )
        return WorkerMetadata(
            results=results,
            stored=[handle for handle in self.stored if handle in set(other.stored)],
            statistics=self.statistics,
            store_bytes=max(self.store_bytes, other.store_bytes),
            rank=self.rank,
            disk=self.disk,
            others={**self.others, **other.disks},
            device=self.device,
        )


@dataclass(frozen=True, slots=True)
class RequestParams:
    """The front end's side of a chunk request, as it travels in `kv_transfer_params["cachecraft"]`.

    `segments`: (start, stop, chunk_id, digest, document_id) for each piece of the prompt, chunk_id None for text.
    `prewarm`: store the chunks, the answer does not matter. `control`: a question to the store instead of a prompt.
    `epoch`: how many deletions the namespace has seen. `prompt`: digest of the token ids, for a policy that looks at
    all of it: what it repairs serves that prompt alone.
    """

    namespace: str
    policy: str
    ratio: float
    min_run: int
    segments: tuple[tuple[int, int, str | None, str | None, str | None], ...]
    prewarm: bool = False
    control: Mapping[str, Any] | None = None
    epoch: int = 0
    prompt: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Only what msgpack knows."""
        return {
            "namespace": self.namespace,
            "policy": self.policy,
            "ratio": self.ratio,
            "min_run": self.min_run,
            "segments": [list(segment) for segment in self.segments],
            "prewarm": self.prewarm,
            "epoch": self.epoch,
            "prompt": self.prompt,
            "control": dict(self.control) if self.control is not None else None,
        }

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any], prompt_tokens: int) -> RequestParams:
        """Checks all it reads, since a server's clients can send anything; ValueError names what is wrong."""
        try:
            params = cls(
                namespace=str(wire["namespace"]),
                policy=str(wire["policy"]),
                ratio=float(wire["ratio"]),
                min_run=int(wire.get("min_run", 1)),
                segments=tuple((int(s[0]), int(s[1]), _name(s[2]), _name(s[3]), _name(s[4])) for s in wire["segments"]),
                prewarm=bool(wire.get("prewarm", False)),
                control=_control(wire.get("control")),
                epoch=int(wire.get("epoch", 0)),
                prompt=_name(wire.get("prompt")),
            )
        except (KeyError, TypeError, IndexError, OverflowError, AttributeError) as error:
            raise ValueError(f"kv_transfer_params['cachecraft'] lacks or garbles {error}") from error
        if params.control is None:
            _check_tiling(params, prompt_tokens)
        if not 0.0 <= params.ratio <= 1.0 or params.min_run < 1:
            raise ValueError(f"ratio={params.ratio} must lie in [0, 1] and min_run={params.min_run} be at least 1")
        return params


def prompt_digest(
    policy: SelectionPolicy, ratio: float, token_ids: Sequence[int] | npt.NDArray[np.integer[Any]]
) -> str | None:
    """sha256 (hex) of the ids where what is repaired in a chunk depends on what comes behind it, else None.

    Nothing does where all is recomputed, or nothing.
    """
    chooses = policy.budget(1, ratio) > 0 and not recomputes_all(policy.name, ratio)
    looks_ahead = policy.needs_question_pass or policy.shares_budget
    return hashlib.sha256(token_bytes(token_ids)).hexdigest() if chooses and looks_ahead else None


def _name(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r:.40}, which should be a str or None")
    return value


def _control(value: Any) -> Mapping[str, Any] | None:
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"control={value!r:.40}, which should be a mapping or None")
    return value


def _check_tiling(params: RequestParams, prompt_tokens: int) -> None:
    position = 0
    for start, stop, *_ in params.segments:
        if start != position or stop <= start:
            raise ValueError(f"segments do not tile the prompt: one covers {start} to {stop}, expected from {position}")
        position = stop
    if position != prompt_tokens:
        raise ValueError(f"segments cover {position} tokens but the prompt has {prompt_tokens}")
