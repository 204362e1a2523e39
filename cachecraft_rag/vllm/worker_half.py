"""The data plane: carries out plans on the worker, one slice per engine step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.config import VllmConfig

from cachecraft_rag.reuse import CaptureSpan, Plan, StagedSpan, positions_to_runs
from cachecraft_rag.reuse.plan import PendingChoice
from cachecraft_rag.reuse.runs import first_rows
from cachecraft_rag.store.device import DeviceReport, DeviceTier
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.disk_io import DiskIo
from cachecraft_rag.store.memory import ChunkKv, HostMemoryStore
from cachecraft_rag.store.transfer import DirectTransfer, Transfer
from cachecraft_rag.vllm.capture import CaptureRows, Watch
from cachecraft_rag.vllm.deviation import layers_run_for_deviation, value_deviation
from cachecraft_rag.vllm.forward import SelectiveForward, SlicePart
from cachecraft_rag.vllm.protocol import ConnectorMetadata, PlanId, PlanMessage, PlanResult, WorkerMetadata
from cachecraft_rag.vllm.question import compact_places, layers_run_for_question, question_attention
from cachecraft_rag.vllm.rotary_layers import rotary_specs
from cachecraft_rag.vllm.staging import Stager
from cachecraft_rag.vllm.statistics import StatisticsMeter, measured_layers
from cachecraft_rag.vllm.versions import max_runs_per_slice

_IDLE_SECONDS = 0.002  # how long a step waits for the disk where nothing else of ours is to be done


@dataclass
class _RunningPlan:
    """A plan that was begun. `cursor`: how many positions of `plan.compute` are done."""

    message: PlanMessage
    cursor: int = 0
    staged: bool = False
    slices: int = 0
    selection_tokens: float = 0.0
    staging_seconds: float = 0.0
    compute_seconds: float = 0.0
    missing: dict[int, str] = field(default_factory=dict)
    chosen: Plan | None = None
    captures: dict[CaptureSpan, ChunkKv] = field(default_factory=dict)
    meter: StatisticsMeter | None = None

    @property
    def remaining(self) -> int:
        return self.message.plan.compute.size - self.cursor

    def result(self, cancelled: bool = False) -> PlanResult:
        return PlanResult(
            self.staging_seconds,
            self.compute_seconds,
            self.slices,
            self.cursor,
            self.missing,
            cancelled,
            None if self.chosen is None else self.chosen.compute,
            self.selection_tokens,
        )


class WorkerHalf:
    """Keeps the tensors of stored chunks and the queue of plans.

    `step` is called once per engine step. A plan ends exactly once, done or cancelled; from then on nothing is written
    to its blocks, and `take_finished` names its request.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        kv_cache_config: Any,
        model: torch.nn.Module,
        device: torch.device,
        disk: DiskStore | None = None,
        *,
        rank: int = 0,
        ranks: int = 1,
        compress: str | None = None,
        transfer: Transfer | None = None,
        tier: DeviceTier | None = None,
    ):
        """`transfer`: from host memory to the device, None for plain copies; `tier`: of copies there, if any."""
        self._forward = SelectiveForward(vllm_config, kv_cache_config, model, device)
        spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
        shape = (len(self._forward.layers), spec.num_kv_heads, spec.head_size)
        self._store = HostMemoryStore(*shape, spec.dtype, compress=compress)
        self._tier = tier
        rotary = rotary_specs(model, self._forward.layer_names)
        transfer = transfer or DirectTransfer(device, spec.dtype)
        self._stager = Stager(self._forward, self._store, rotary, device, transfer, tier)
        self._disk = DiskIo(disk, self._store, ranks) if disk is not None else None
        self._max_rows = vllm_config.scheduler_config.max_num_batched_tokens
        self._max_runs = max_runs_per_slice(vllm_config, self._forward.layers[0])
        self._queue: dict[PlanId, _RunningPlan] = {}
        self._finished: set[str] = set()
        self._rank = rank
        self._report = WorkerMetadata(rank=rank)
        self._changed = False

    def step(self, metadata: ConnectorMetadata) -> None:
        """Take in what the scheduler half decided, then run one slice."""
        for handle in metadata.freed:
            self._store.free(handle)
            if self._tier is not None:
                self._tier.free(handle)
            self._changed = True
        if self._disk is not None:
            self._disk.begin(metadata.disk)
            self._disk.forget(metadata.freed)
            self._collect(self._disk)
        for message in metadata.plans:
            variants = [span for span in message.plan.captures if span.pieces]
            meter = StatisticsMeter(self._forward, variants, message.plan.end) if variants else None
            self._queue[message.plan_id] = _RunningPlan(message, meter=meter)
        for plan_id in metadata.cancelled:
            running = self._queue.pop(plan_id, None)
            if running is not None:
                self._end(plan_id, running.result(cancelled=True))
        if self._queue:
            self._run_slice()

    def take_finished(self) -> set[str]:
        """Requests whose plan ended since the last call."""
        finished, self._finished = self._finished, set()
        return finished

    def take_report(self) -> WorkerMetadata | None:
        """What happened since the last call, None where nothing did."""
        if not self._changed:
            return None
        report, self._report = self._report, WorkerMetadata(rank=self._rank)
        report.store_bytes = self._store.nbytes
        report.device = self._tier.report() if self._tier is not None else DeviceReport()
        self._changed = False
        return report

    def close(self) -> None:
        """What is being written to disk is written whole first."""
        if self._disk is not None:
            self._disk.close()
        self._queue.clear()
        self._forward.close()

    def _end(self, plan_id: PlanId, result: PlanResult) -> None:
        self._finished.add(plan_id[0])
        self._report.results[plan_id] = result
        self._changed = True

    def _collect(self, disk: DiskIo) -> None:
        idle = bool(self._queue) and all(self._awaits_disk(running) for running in self._queue.values())
        if disk.collect(self._report.disk, _IDLE_SECONDS if idle else 0.0):
            self._changed = True

    def _awaits_disk(self, running: _RunningPlan) -> bool:
        if self._disk is None or running.staged:
            return False
        plan = running.message.plan
        spans = plan.staged if plan.pending is None else (*plan.staged, *plan.pending.keys)
        return any(self._disk.is_loading(span.handle) for span in spans)

    def _run_slice(self) -> None:
        taken: list[tuple[_RunningPlan, SlicePart]] = []
        captures: list[CaptureRows] = []
        rows_left, runs_left, row = self._max_rows, self._max_runs, 0
        for running in self._queue.values():
            if rows_left <= 0 or runs_left <= 0:
                break
            if self._awaits_disk(running):
                continue
            if not running.staged:
                self._stage(running)
            plan = running.message.plan
            positions = plan.compute[running.cursor :]
            rows = first_rows(positions, rows_left, runs_left)
            if rows == 0:
                continue
            positions = positions[:rows]
            taken.append(
                (running, SlicePart(positions, running.message.token_ids[positions], running.message.block_ids))
            )
            captures += self._captures(running, positions, row)
            rows_left -= rows
            runs_left -= len(positions_to_runs(positions))
            row += rows
        if taken:
            self._compute(taken, captures)
        for plan_id, running in list(self._queue.items()):
            if running.staged and running.remaining == 0:
                del self._queue[plan_id]
                for span, kv in running.captures.items():
                    self._store.put(span.handle, kv)
                    self._report.stored.append(span.handle)
                if running.meter is not None:
                    self._report.statistics.update(running.meter.results())
                self._end(plan_id, running.result())

    def _compute(self, taken: list[tuple[_RunningPlan, SlicePart]], captures: list[CaptureRows]) -> None:
        started = time.perf_counter()
        self._forward.recorder.rows = tuple(captures)
        measured = any(running.meter is not None for running, _ in taken)
        layers = measured_layers(len(self._forward.layers)) if measured else frozenset()
        try:
            with self._forward.recorder.watching(Watch(queries_of=layers, keys_of=layers)) as watch:
                self._forward.run([part for _, part in taken])
        finally:
            self._forward.recorder.rows = ()
        row = 0
        for running, part in taken:
            if running.meter is not None:
                running.meter.see(watch, slice(row, row + part.positions.size), part.positions)
            row += part.positions.size
        seconds = time.perf_counter() - started
        rows = sum(part.positions.size for _, part in taken)
        for running, part in taken:
            running.cursor += part.positions.size
            running.slices += 1
            running.compute_seconds += seconds * part.positions.size / rows

    def _captures(self, running: _RunningPlan, positions: Any, first_row: int) -> Iterable[CaptureRows]:
        for span in running.message.plan.captures:
            start, stop = np.searchsorted(positions, (span.start, span.stop))
            if start == stop:
                continue
            if span not in running.captures:
                running.captures[span] = self._store.allocate(span.stop - span.start)
            offset = int(positions[start]) - span.start
            yield CaptureRows(running.captures[span], first_row + int(start), first_row + int(stop), offset)

    def _stage(self, running: _RunningPlan) -> None:
        """Write all cached spans of a plan into its blocks. What is not there is computed instead."""
        started = time.perf_counter()
        plan = running.message.plan
        if plan.pending is not None:
            rows = plan.pending.question_rows[-self._max_rows :]
            keys = tuple(span for span in plan.pending.keys if self._stager.stored(span) is not None)
            plan = replace(plan, pending=replace(plan.pending, question_rows=rows, keys=keys))
            running.message = replace(running.message, plan=plan)
        lost = [span for span in plan.staged if self._stager.stored(span) is None]
        there = [span for span in plan.staged if span not in lost]
        self._stager.note_uses(there, plan, running.message.namespace)
        places = compact_places(plan, there) if plan.pending is not None else None
        self._stager.write(there, running.message.block_ids, places)
        if lost:
            extra = [np.arange(span.start, span.stop) for span in lost]
            compute = np.union1d(plan.compute, np.concatenate(extra)).astype(np.int64)
            running.message = replace(running.message, plan=replace(plan, compute=compute))
            running.missing = {span.handle: self._why_lost(span.handle) for span in lost}
        running.staged = True
        running.staging_seconds = time.perf_counter() - started
        if plan.pending is not None:
            self._choose(running, plan.pending, there, places)

    def _choose(
        self,
        running: _RunningPlan,
        pending: PendingChoice,
        staged: Sequence[StagedSpan],
        places: npt.NDArray[np.int64] | None,
    ) -> None:
        """Run ahead what the policy wants to look at, over what is staged, and let it choose what is recomputed."""
        started = time.perf_counter()
        layers = len(self._forward.layers)
        attention = deviation = None
        if pending.question_rows.size:
            attention = question_attention(self._forward, running.message, self._stager.key, places)
            running.selection_tokens += pending.question_rows.size * layers_run_for_question(layers) / layers
        if places is not None:
            self._stager.write(staged, running.message.block_ids)
        if pending.deviation_rows.size:
            deviation = value_deviation(self._forward, running.message, self._stager.value, self._max_rows)
            running.selection_tokens += pending.deviation_rows.size * layers_run_for_deviation(layers) / layers
            # The pass wrote the first layer anew, equal but for rounding. Without a pass the prompt is to get the same.
            self._stager.write(staged, running.message.block_ids)
        running.chosen = running.message.plan.choose(attention, deviation)
        running.message = replace(running.message, plan=running.chosen)
        running.slices += 1
        running.compute_seconds += time.perf_counter() - started

    def _why_lost(self, handle: int) -> str:
        reason = self._disk.reason(handle) if self._disk is not None else None
        return reason or "its stored KV was gone when it was read"
