"""The front end of an embedded engine, on its event loop: encodes prompts, sends them, reads answers and reports."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachecraft_rag.answer import Answer, Delta
from cachecraft_rag.calibration.setting import reuse_defaults
from cachecraft_rag.config import EngineConfig
from cachecraft_rag.drift import DriftGuard, Skipped
from cachecraft_rag.errors import CachecraftError, InvalidInput
from cachecraft_rag.interface import REQUEST_OPTIONS, check_delete
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.report import NOT_STORED, STORED_NOW, ChunkReport, Outcome, RequestReport
from cachecraft_rag.reuse import get_policy
from cachecraft_rag.reuse.policies import recomputes_all
from cachecraft_rag.tokenise import EncodedPrompt, PromptTokenizer
from cachecraft_rag.vllm.drift_watch import DriftWatch
from cachecraft_rag.vllm.launch import make_settings, start_async_llm
from cachecraft_rag.vllm.protocol import RequestParams, prompt_digest
from cachecraft_rag.vllm.requests import Requests
from cachecraft_rag.vllm.sampling import DEFAULTS, make_sampling

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from cachecraft_rag.vllm.settings import ConnectorSettings

_FLUSH_POLL_SECONDS = 0.02


class EngineClient:
    """One AsyncLLM with the connector in it. All methods run on the loop it was started on."""

    def __init__(
        self, config: EngineConfig, llm: AsyncLLM, tokenizer: PromptTokenizer, settings: ConnectorSettings
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.max_model_len: int = llm.vllm_config.model_config.max_model_len
        self.dtype = str(llm.vllm_config.model_config.dtype).removeprefix("torch.")
        self.requests = Requests(llm, settings.secret)
        # What each chunk is computed behind when it is stored.
        self.canonical_prefix = settings.head_token_ids + settings.stand_in_token_ids
        self.model_store_dir: Path | None = None
        self._use(*reuse_defaults(config, None))
        self._stores_misses = config.store_misses and not config.read_only
        self._epochs: Counter[str] = Counter()
        self._background: set[asyncio.Task[RequestReport]] = set()
        self._deleting = asyncio.Lock()  # deletions, and what is stored behind answers, one after the other

    @classmethod
    async def start(cls, config: EngineConfig) -> EngineClient:
        tokenizer = PromptTokenizer.of_engine(config)
        settings = make_settings(config, tokenizer)
        llm = start_async_llm(config, settings)
        client = cls(config, llm, tokenizer, settings)
        if settings.store_dir is not None:
            try:
                model = (await client.control({"op": "model"}))["model"]
            except BaseException:
                await client.close()
                raise
            client.model_store_dir = Path(settings.store_dir) / model
            client._use(*reuse_defaults(config, client.model_store_dir))
        return client

    @property
    def recompute_ratio(self) -> float:
        """Of requests that name none; it rises where the drift guard finds answers too far from full prefill."""
        return self._drift.guard.ratio

    def _use(self, policy: str, ratio: float) -> None:
        self.policy = policy
        guard = DriftGuard(self.config.drift_guard, self.config.drift_target, ratio, seed=self.config.seed)
        self._drift = DriftWatch(guard, self.requests)

    async def stream(
        self, prompt: ChunkPrompt, sampling: Any, options: Mapping[str, Any], started: float
    ) -> AsyncGenerator[Delta, None]:
        """Deltas of one answer. A closed generator aborts the request."""
        own = {name: options[name] for name in REQUEST_OPTIONS if name in options}
        rest = {name: value for name, value in options.items() if name not in own}
        encoded = self.tokenizer.encode(prompt)
        if sampling is None and "max_tokens" not in rest:
            room = self.max_model_len - len(encoded.token_ids)
            rest["max_tokens"] = max(1, min(DEFAULTS["max_tokens"], room))
        sampling = make_sampling(sampling, rest)
        self._check_length(len(encoded.token_ids), sampling.max_tokens)
        asked = bool(own.pop("reuse", True))
        salt = _salt(bool(own.pop("fresh", False)), own.pop("cache_salt", None))
        if asked and salt is not None:
            raise InvalidInput("fresh=True and cache_salt= are for plain requests; give reuse=False with them")
        params = self.request_params(encoded, **own) if asked and encoded.chunks else None
        by_default = own.get("policy") is None and own.get("recompute_ratio") is None
        watched = params if params is not None and by_default and self._drift.guard.pick() else None
        async with aclosing(self._deltas(prompt, encoded, sampling, params, salt, started)) as deltas:
            try:
                async for delta in deltas:
                    if delta.answer is not None and watched is not None:
                        answer, reused = delta.answer, _reuses(delta.answer.report, watched)
                        self._drift.finished(
                            encoded.token_ids, answer.token_ids, sampling, watched.ratio, reused=reused
                        )
                        watched = None
                    yield delta
            except InvalidInput:
                watched = None  # it was refused: there is no answer to compare
                raise
            finally:
                if watched is not None:
                    self._drift.guard.skip(Skipped.ABORTED)

    async def _deltas(
        self,
        prompt: ChunkPrompt,
        encoded: EncodedPrompt,
        sampling: SamplingParams,
        params: RequestParams | None,
        salt: str | None,
        started: float,
    ) -> AsyncGenerator[Delta, None]:
        texts: list[str] = []
        token_ids: list[int] = []
        logprobs: list[Mapping[int, Any]] = []
        first_token_seconds: float | None = None
        collector = await self.requests.enqueue(encoded.token_ids, sampling, params, salt=salt)
        async with aclosing(self.requests.outputs(collector)) as outputs:
            async for output in outputs:
                if first_token_seconds is None:
                    first_token_seconds = time.perf_counter() - started
                completion = output.outputs[0]
                texts.append(completion.text)
                token_ids += completion.token_ids
                logprobs += completion.logprobs or []
                if not output.finished:
                    yield Delta(completion.text, tuple(completion.token_ids))
                    continue
                report = _report(output, first_token_seconds)
                if report is not None and len(report.chunks) == len(prompt.chunks):
                    report = report.with_recovered(chunk.recovered for chunk in prompt.chunks)
                if report is not None and params is not None and self._stores_misses:
                    await self._store_misses(encoded, report, params)
                answer = Answer(
                    text="".join(texts),
                    token_ids=tuple(token_ids),
                    prompt_tokens=len(encoded.token_ids),
                    finish_reason=completion.finish_reason,
                    first_token_seconds=first_token_seconds,
                    report=report,
                    logprobs=tuple(logprobs) if sampling.logprobs is not None else None,
                    stop_reason=completion.stop_reason,
                    prefix_cache_tokens=0 if report is not None else output.num_cached_tokens or 0,
                )
                yield Delta(completion.text, tuple(completion.token_ids), answer)

    def request_params(
        self,
        encoded: EncodedPrompt,
        *,
        policy: str | None = None,
        recompute_ratio: float | None = None,
        min_run: int | None = None,
        namespace: str | None = None,
        prewarm: bool = False,
    ) -> RequestParams:
        """The connector's side of a request; what is not given is the engine's."""
        given: dict[str, Any] = {"min_run": min_run, "namespace": namespace}
        config = replace(
            self.config,
            policy=self.policy if policy is None else policy,
            recompute_ratio=self.recompute_ratio if recompute_ratio is None else recompute_ratio,
            **{name: value for name, value in given.items() if value is not None},
        )
        assert config.policy is not None
        assert config.recompute_ratio is not None
        chosen = get_policy(config.policy)
        return RequestParams(
            namespace=config.namespace,
            policy=chosen.name,
            ratio=config.recompute_ratio,
            min_run=config.min_run,
            segments=tuple((s.start, s.stop, s.chunk_id, s.digest, s.document_id) for s in encoded.segments),
            prewarm=prewarm,
            epoch=self._epochs[config.namespace],
            prompt=prompt_digest(chosen, config.recompute_ratio, encoded.token_ids),
        )

    async def control(self, control: Mapping[str, Any], namespace: str | None = None) -> dict[str, Any]:
        """Ask the store; see `vllm.control` for the operations."""
        nothing = self.request_params(EncodedPrompt((), ()), namespace=namespace, policy="none", recompute_ratio=0.0)
        params = replace(nothing, control=control)
        token_id = (self.tokenizer.head_token_ids or (0,))[0]
        sampling = make_sampling(None, {"max_tokens": 1, "detokenize": False})
        output = await self.requests.last_output(await self.requests.enqueue([token_id], sampling, params))
        answer: dict[str, Any] = output.kv_transfer_params["cachecraft"]["answer"]
        if "error" in answer:
            raise CachecraftError(answer["error"])
        return answer

    async def stats(self, namespace: str | None) -> dict[str, Any]:
        counters = await self.control({"op": "stats", "own": namespace is not None}, namespace)
        if namespace is None and self.config.drift_guard > 0.0:
            counters["drift"] = self._drift.guard.stats()
        return counters

    async def delete(
        self, chunk_ids: Iterable[str] | None, document_id: str | None, everything: bool, namespace: str | None
    ) -> list[str]:
        self.check_writable("delete")
        check_delete(chunk_ids, document_id, everything)
        control: dict[str, Any] = {"op": "delete"}
        if chunk_ids is not None:
            control["chunk_ids"] = list(chunk_ids)
        if document_id is not None:
            control["document_id"] = document_id
        async with self._deleting:
            try:
                deleted: list[str] = (await self.control(control, namespace))["deleted"]
            finally:
                # What earlier requests left in vLLM's prefix cache may hold what was deleted: nobody finds it from here
                # on. Nor are chunks stored that they missed, which may be those.
                self._epochs[self.config.namespace if namespace is None else namespace] += 1
        await self.flush()
        return deleted

    async def flush(self) -> None:
        """Wait until the disk tier holds, and does not hold, what was decided so far."""
        if self.config.store_dir is None:
            return
        changes = await self.control({"op": "changes"})
        decided = changes["decided"]
        while changes["made"] < decided:
            await asyncio.sleep(_FLUSH_POLL_SECONDS)
            changes = await self.control({"op": "changes"})

    async def close(self) -> None:
        await self._drift.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        with suppress(CachecraftError):  # an engine that died has nothing to wait for
            await self.flush()
        await self.requests.close()

    def check_writable(self, call: str) -> None:
        if self.config.read_only:
            raise InvalidInput(f"{call}() changes the store, but this engine serves read-only; start one without it")

    def _check_length(self, prompt_tokens: int, max_tokens: int | None) -> None:
        limit = self.max_model_len
        if prompt_tokens + 1 > limit:
            raise InvalidInput(
                f"the prompt has {prompt_tokens} tokens but the model's context holds {limit}, one of them for the "
                "answer; give fewer or shorter chunks, or raise max_model_len"
            )
        if max_tokens is not None and prompt_tokens + max_tokens > limit:
            raise InvalidInput(
                f"the prompt's {prompt_tokens} tokens and max_tokens={max_tokens} exceed the model's context of "
                f"{limit}; lower max_tokens or give fewer chunks"
            )

    async def _store_misses(self, encoded: EncodedPrompt, report: RequestReport, params: RequestParams) -> None:
        """Begin to store the canonical KV of missed chunks, as requests queued behind those that are waiting now.

        Not where chunks of the namespace were deleted since the request came: they might be among them.
        """
        from cachecraft_rag.vllm.prewarm import encode_for_prewarm, enqueue_prewarm

        missed = {chunk.offset for chunk in report.chunks if _is_unstored(chunk)}
        seen = set()
        for segment in encoded.chunks:
            if segment.start not in missed or segment.digest in seen or segment.chunk_id is None:
                continue
            seen.add(segment.digest)
            token_ids = encoded.token_ids[segment.start : segment.stop]
            prompt = encode_for_prewarm(self.canonical_prefix, token_ids, segment)
            async with self._deleting:
                if params.epoch != self._epochs[params.namespace]:
                    return
                waiting = await enqueue_prewarm(self, prompt, params.namespace)
            task = asyncio.create_task(waiting.report())
            self._background.add(task)
            task.add_done_callback(self._background.discard)


def _salt(fresh: bool, cache_salt: str | None) -> str | None:
    if cache_salt is not None and (fresh or not isinstance(cache_salt, str) or not cache_salt):
        raise InvalidInput(f"cache_salt={cache_salt!r:.60} must be a text that is not empty, and not with fresh=True")
    return secrets.token_hex(16) if fresh else cache_salt


def _is_unstored(chunk: ChunkReport) -> bool:
    return (
        chunk.outcome is Outcome.MISS and chunk.reason.startswith(NOT_STORED) and not chunk.reason.endswith(STORED_NOW)
    )


def _reuses(report: RequestReport | None, params: RequestParams) -> bool:
    """Whether stored KV went into an answer, below the ratio at which none does."""
    hits = report is not None and any(chunk.outcome is Outcome.HIT for chunk in report.chunks)
    return hits and not recomputes_all(params.policy, params.ratio)


def _report(output: Any, first_token_seconds: float) -> RequestReport | None:
    wire = (output.kv_transfer_params or {}).get("cachecraft")
    return RequestReport.from_dict(wire["report"]).with_first_token(first_token_seconds) if wire else None
