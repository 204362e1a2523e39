"""The control plane: classifies the chunks of each request, makes its plan, and writes its report."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cachecraft_rag.report import Outcome
from cachecraft_rag.reuse import Plan, get_policy, make_plan
from cachecraft_rag.reuse.policies import recomputes_all
from cachecraft_rag.store import KvIndex
from cachecraft_rag.store.device import DeviceReport
from cachecraft_rag.store.eviction import get_eviction
from cachecraft_rag.vllm.choices import RememberedChoices
from cachecraft_rag.vllm.classify import Classifier, Finding
from cachecraft_rag.vllm.control import WorkerState, run_control, segment_selector
from cachecraft_rag.vllm.disk_tier import DiskTier, open_disks
from cachecraft_rag.vllm.identity import entry_size, key_maker
from cachecraft_rag.vllm.protocol import (
    ConnectorMetadata,
    PlanId,
    PlanMessage,
    RequestParams,
    WorkerMetadata,
    prompt_digest,
)
from cachecraft_rag.vllm.request_state import RequestState
from cachecraft_rag.vllm.salts import is_valid_salt
from cachecraft_rag.vllm.settings import ConnectorSettings
from cachecraft_rag.vllm.variants import VariantKeeper

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _PlanInFlight:
    """A plan the worker has. `handles`: entries it reads or fills, acquired; `captures`: those it fills."""

    handles: tuple[int, ...]
    captures: tuple[int, ...]


class SchedulerHalf:
    """Answers vLLM's scheduler. Each chunk request is promised all its prompt but one token, asynchronously."""

    def __init__(self, settings: ConnectorSettings, vllm_config: Any, kv_cache_config: Any) -> None:
        self._settings = settings
        share = settings.namespace_share
        self._index = KvIndex(settings.store_bytes, get_eviction(settings.eviction), namespace_share=share)
        keys = key_maker(settings, vllm_config, kv_cache_config)
        size = entry_size(settings, kv_cache_config)
        ranks = vllm_config.parallel_config.tensor_parallel_size
        self._disk = DiskTier(self._index, open_disks(settings, keys, ranks), size, share)
        head = np.asarray(settings.head_token_ids, dtype=np.int32)
        least = settings.min_chunk_tokens
        limit = 0 if settings.read_only else settings.keep_variants
        self._variants = VariantKeeper(self._index, keys, head, size=size, limit=limit, min_chunk_tokens=least)
        self._classifier = Classifier(
            self._index,
            keys,
            head,
            size=size,
            min_chunk_tokens=least,
            max_model_len=vllm_config.model_config.max_model_len,
            stand_in=settings.stand_in_token_ids,
            disk=self._disk,
            lossless=settings.compress is None,
        )
        self._requests: dict[str, RequestState] = {}
        self._in_flight: dict[PlanId, _PlanInFlight] = {}
        self._outbox = ConnectorMetadata()
        self._choices = RememberedChoices()
        self._store_bytes = 0
        self._device = DeviceReport()
        self._room: dict[str, int] = {}  # of the index, by namespace, until the next step
        self._eventual_room: dict[str, int] = {}  # for the same namespaces

    def on_new_request(self, request: Any) -> None:
        transfer = request.kv_transfer_params
        wire = transfer.get("cachecraft") if isinstance(transfer, Mapping) else None
        if wire is None or request.prompt_token_ids is None:
            return
        token_ids = np.asarray(request.prompt_token_ids, dtype=np.int32)
        try:
            params = RequestParams.from_wire(wire, token_ids.size)
            params = replace(params, prompt=prompt_digest(get_policy(params.policy), params.ratio, token_ids))
        except ValueError as error:
            empty = RequestParams("", "none", 0.0, 1, ())
            self._requests[request.request_id] = RequestState(empty, token_ids, refusal=str(error))
            return
        state = RequestState(params, token_ids, request.cache_salt)
        if not is_valid_salt(self._settings.secret, params, request.cache_salt):
            state.refusal = "its cache_salt does not keep its repaired KV apart from plain requests"
        elif params.control is not None:
            busy = bool(self._in_flight) or self._index.has_freed or self._disk.is_reading
            capacity = self._settings.device_store_bytes
            worker = WorkerState(self._store_bytes, self._device, capacity, busy)
            state.answer = run_control(self._index, params, worker, self._disk)
            if "deleted" in state.answer:
                named = segment_selector(params)
                for other in self._requests.values():
                    other.withdrawn |= named(other.params)
        elif request.skip_reading_prefix_cache:
            state.refusal = "prompt_logprobs need every prompt token computed by vLLM itself"
        elif request.lora_request is not None:
            state.refusal = "LoRA requests are not supported yet"
        self._requests[request.request_id] = state

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Promise what is left of the prompt, up to the token that vLLM computes itself. No side effects."""
        state = self._requests.get(request.request_id)
        if state is None or state.answer is not None or state.refusal is not None:
            return 0, False
        promised = _end(request) - num_computed_tokens
        if promised <= 0:
            return 0, False
        params = state.params
        waits = params.prewarm or _reads(params)
        if waits and self._classifier.awaits_pending(params, state.token_ids):
            return None, False
        if params.prewarm and self._lacks_room(params):
            return None, False
        return promised, True

    def update_state_after_alloc(self, request: Any, block_ids: Sequence[int], num_external_tokens: int) -> None:
        state = self._requests.get(request.request_id)
        if state is None or state.answer is not None or state.refusal is not None:
            return
        if num_external_tokens == 0:
            if state.plan_id is None:
                self._found_all_in_prefix_cache(request, state)
            return
        started = time.perf_counter()
        end = _end(request)
        num_computed_tokens = end - num_external_tokens
        params = state.params
        state.prefix_cache_tokens = num_computed_tokens
        state.findings = self._classifier.classify(
            params,
            state.token_ids,
            store=not self._settings.read_only and (params.prewarm or self._settings.store_misses),
            lower=num_computed_tokens,
            upper=end,
            read_from=self._read_from(state, num_computed_tokens),
            withdrawn=state.withdrawn,
        )
        plan = self._plan(state, num_computed_tokens, end)
        variants = tuple(span.handle for span in plan.captures if span.pieces)
        if params.prewarm:
            for namespace in self._room:
                self._room[namespace] -= self._classifier.bytes_to_store(params)
        else:
            self._room.clear()  # it may have taken room, or hold what could have been evicted
        state.plan = plan
        self._count_uses(state.findings, plan)
        state.plans += 1
        state.plan_id = (request.request_id, state.plans)
        handles = tuple(
            handle
            for finding in state.findings
            for handle in (finding.segment.handle, finding.segment.capture)
            if handle is not None
        )
        handles += variants
        captures = tuple(span.handle for span in plan.captures)
        self._in_flight[state.plan_id] = _PlanInFlight(handles, captures)
        self._outbox.plans.append(
            PlanMessage(
                plan_id=state.plan_id,
                plan=plan,
                token_ids=state.token_ids[:end].astype(np.int64),
                block_ids=np.asarray(block_ids, dtype=np.int64),
                namespace=params.namespace,
            )
        )
        state.lookup_seconds += time.perf_counter() - started

    def take_metadata(self) -> ConnectorMetadata:
        """What the worker half must know for this step."""
        metadata, self._outbox = self._outbox, ConnectorMetadata()
        self._room.clear()
        metadata.freed = self._index.take_freed()
        metadata.disk = self._disk.take_orders()
        return metadata

    def on_worker_report(self, report: WorkerMetadata) -> None:
        self._store_bytes, self._device = report.store_bytes, report.device
        self._disk.on_report(report.disks)
        for handle in report.stored:
            self._index.commit(handle, report.statistics.get(handle))
            self._disk.write(handle)
        for plan_id, result in report.results.items():
            flight = self._in_flight.pop(plan_id)
            if result.cancelled:
                for handle in flight.captures:
                    self._index.abort(handle)
            for handle in result.missing:
                self._index.abort(handle)
            for handle in flight.handles:
                self._index.release(handle)
            for reason in result.missing.values():
                logger.warning("%s: what was stored of a chunk is computed: %s", plan_id[0], reason)
            state = self._requests.get(plan_id[0])
            if state is not None:
                state.result = result
                if result.chosen is not None and state.plan is not None:
                    self._choices.add(state.salt, state.plan.num_computed_tokens, result.chosen)
                    state.plan = replace(state.plan, compute=result.chosen, pending=None)

    def request_finished(self, request: Any) -> dict[str, Any] | None:
        """The request's report, or the answer of a control request; cancels its plan where one is in flight."""
        state = self._requests.pop(request.request_id, None)
        if state is None:
            return None
        if state.plan_id in self._in_flight:
            assert state.plan_id is not None
            self._outbox.cancelled.append(state.plan_id)
        if state.answer is not None:
            return {"cachecraft": {"answer": state.answer}}
        return {"cachecraft": {"report": state.report(request.request_id).to_dict()}}

    def _lacks_room(self, params: RequestParams) -> bool:
        """Whether a prewarm should wait until others are computed and written, so that they can leave memory."""
        if not self._in_flight and not self._disk.pending:
            return False
        name = params.namespace
        if name not in self._room:
            self._room[name] = self._index.room(name)
            self._eventual_room[name] = self._index.room(name, eventually=True)
        return self._room[name] < self._classifier.bytes_to_store(params) <= self._eventual_room[name]

    def _plan(self, state: RequestState, num_computed_tokens: int, end: int) -> Plan:
        params = state.params
        segments = [finding.segment for finding in state.findings]
        plan = make_plan(
            segments,
            get_policy(params.policy),
            params.ratio,
            num_computed_tokens=num_computed_tokens,
            end=end,
            min_run=params.min_run,
            bucket=1 if params.prewarm else self._settings.recompute_bucket,
        )
        if plan.pending is not None and (remembered := self._choices.get(state.salt)) is not None:
            plan = plan.choose_again(remembered)
        in_full = num_computed_tokens == 0 and plan.compute.size == end  # nothing was repaired, so all of it is exact
        if in_full and not state.withdrawn and not self._classifier.behind_stand_in(params, state.token_ids):
            variants = self._variants.reserve(params, state.token_ids, end)
            plan = replace(plan, captures=(*plan.captures, *variants))
        if params.prewarm and not plan.captures:
            # There is nothing to learn from this request, and nobody reads its blocks.
            plan = replace(plan, compute=np.empty(0, dtype=np.int64), staged=())
        return plan

    def _found_all_in_prefix_cache(self, request: Any, state: RequestState) -> None:
        tokens = request.num_prompt_tokens
        state.prefix_cache_tokens = tokens - 1
        state.findings = self._classifier.classify(
            state.params, state.token_ids, store=False, lower=tokens, upper=tokens, read_from=None
        )
        self._count_uses(state.findings, None)
        for finding in state.findings:
            if finding.segment.handle is not None:
                self._index.release(finding.segment.handle)

    def _read_from(self, state: RequestState, num_computed_tokens: int) -> int | None:
        """The first position whose stored KV is looked at. A pass ahead looks at what lies in blocks, too."""
        if not _reads(state.params):
            return None
        policy = get_policy(state.params.policy)
        passes = policy.needs_question_pass or policy.needs_deviation_pass
        return 0 if passes and self._choices.get(state.salt) is None else num_computed_tokens

    def _count_uses(self, findings: Sequence[Finding], plan: Plan | None) -> None:
        """Tell the eviction policy what was used, and how much of it had to be recomputed."""
        for finding in findings:
            segment = finding.segment
            entry = self._index.get(segment.key) if finding.outcome is Outcome.HIT and segment.key else None
            if entry is not None:
                share = 0.0 if plan is None else plan.computed_share(segment.start, segment.stop)
                self._index.touch(entry, share)


def _reads(params: RequestParams) -> bool:
    """Whether a request uses stored KV: a prewarm does not, nor does what is recomputed in full."""
    return not params.prewarm and not recomputes_all(params.policy, params.ratio)


def _end(request: Any) -> int:
    """One past the last prompt position we compute: vLLM needs one token left to run itself.

    A preempted request that has generated tokens brings them behind its prompt, and then the whole prompt is ours.
    """
    prompt_tokens: int = request.num_prompt_tokens
    return prompt_tokens if request.num_tokens > prompt_tokens else prompt_tokens - 1
