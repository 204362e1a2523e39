"""The one door: an embedded vLLM that reuses the KV of chunks."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cachecraft_rag.answer import Answer, Delta, PrewarmReport, VariantsReport
from cachecraft_rag.background import BackgroundLoop
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.closing import Closing
from cachecraft_rag.config import DEFAULT_POLICY, EngineConfig
from cachecraft_rag.errors import EngineClosed, InvalidInput
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.report import RequestReport
from cachecraft_rag.reuse import get_policy
from cachecraft_rag.reuse.policies import follows_no_ratio

if TYPE_CHECKING:
    from vllm import SamplingParams

    from cachecraft_rag.tokenise import PromptTokenizer
    from cachecraft_rag.verify import VerifyResult

logger = logging.getLogger(__name__)


class ChunkEngine(Closing):
    """Generates answers over chunks whose KV is kept and reused at any position.

    All methods may be called from any thread and any event loop at once; vLLM batches what is in flight. Methods that
    begin with `a` are the same for tasks. Close it, or use it as a context manager: only then is its memory freed.

    Starting takes some seconds: the model is loaded. Since the engine is a process of its own, a script must start it
    under `if __name__ == "__main__":`.
    """

    def __init__(self, config: EngineConfig | str, **options: Any) -> None:
        """`config`, or the model's name or folder with the options of `EngineConfig` as keywords.

        Raises `InvalidInput`, `UnsupportedModel` or `UnsupportedVllm` before anything heavy is loaded where it can.
        """
        self.config = config if isinstance(config, EngineConfig) else EngineConfig(config, **options)
        if isinstance(config, EngineConfig) and options:
            self.config = replace(config, **options)
        policy = get_policy(self.config.policy or DEFAULT_POLICY)
        if self.config.drift_guard > 0.0 and follows_no_ratio(policy):
            raise InvalidInput(
                f"drift_guard={self.config.drift_guard:g} raises the ratio, but policy {policy.name!r} does the same "
                f"at every one: give another policy, such as {DEFAULT_POLICY!r}, or leave the guard off"
            )
        from cachecraft_rag.vllm.client import EngineClient

        self._last_report: RequestReport | None = None
        self._loop = BackgroundLoop("cachecraft-engine")
        try:
            self._client = self._loop.run(EngineClient.start(self.config))
        except BaseException:
            self._loop.close()
            raise
        self._closed = False

    @property
    def tokenizer(self) -> PromptTokenizer:
        return self._client.tokenizer

    @property
    def model_name(self) -> str:
        """The model's name or folder, as it was given."""
        return self.config.model

    @property
    def policy(self) -> str:
        """Which tokens of reused chunks are recomputed where a request does not say."""
        return self._client.policy

    @property
    def recompute_ratio(self) -> float:
        """How large a share of them, where a request does not say."""
        return self._client.recompute_ratio

    @property
    def model_store_dir(self) -> Path | None:
        """The folder of this model's caches in `store_dir`, None without one."""
        return self._client.model_store_dir

    @property
    def max_model_len(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self._client.max_model_len

    def count_tokens(self, prompt: ChunkPrompt | str) -> int:
        """The tokens of a prompt as it would be sent, template included; of a str its own tokens alone."""
        return self.tokenizer.count(prompt) if isinstance(prompt, str) else len(self.tokenizer.encode(prompt).token_ids)

    @property
    def dtype(self) -> str:
        """The dtype the model computes in, such as "bfloat16"."""
        return self._client.dtype

    @property
    def report(self) -> RequestReport | None:
        """The report of the chunk request that finished last; each `Answer` has its own."""
        return self._last_report

    def generate(self, prompt: ChunkPrompt, sampling: SamplingParams | None = None, **options: Any) -> Answer:
        """The answer to one prompt.

        `sampling`: vLLM's SamplingParams, or its fields as keywords (max_tokens, temperature, stop, ...), greedy and
        256 tokens by default. Further keywords: `policy`, `recompute_ratio`, `min_run` and `namespace` override the
        engine's for this request; `reuse=False` sends a plain request that vLLM prefills as always. With it,
        `cache_salt=` lets that request find in vLLM's prefix cache only what requests of the same salt left there, and
        `fresh=True` lets it find nothing.

        Raises `InvalidInput` for what cannot be sent: an empty prompt, one too long for the model, unknown keywords.
        """
        return self._open().run(self._generate(prompt, sampling, options))

    async def agenerate(self, prompt: ChunkPrompt, sampling: SamplingParams | None = None, **options: Any) -> Answer:
        """`generate` for tasks; cancelling the task aborts the request and frees its blocks."""
        return await self._open().run_async(self._generate(prompt, sampling, options))

    def submit(self, prompt: ChunkPrompt, sampling: SamplingParams | None = None, **options: Any) -> Future[Answer]:
        """`generate` without waiting. Cancelling the future aborts the request."""
        return self._open().submit(self._generate(prompt, sampling, options))

    def generate_batch(
        self, prompts: Sequence[ChunkPrompt], sampling: SamplingParams | None = None, **options: Any
    ) -> list[Answer]:
        """Answers in the order of `prompts`, all in flight at once."""
        futures = [self.submit(prompt, sampling, **options) for prompt in prompts]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def stream(self, prompt: ChunkPrompt, sampling: SamplingParams | None = None, **options: Any) -> Iterator[Delta]:
        """Pieces of the answer as they are made. Closing the iterator aborts the request and frees its blocks."""
        return self._open().iterate(self._stream(prompt, sampling, options))

    def astream(
        self, prompt: ChunkPrompt, sampling: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[Delta]:
        """`stream` for tasks."""
        return self._open().iterate_async(self._stream(prompt, sampling, options))

    def prewarm(
        self,
        chunks: Iterable[Chunk | str],
        *,
        namespace: str | None = None,
        pin: bool = False,
        progress: bool = True,
    ) -> PrewarmReport:
        """Compute and keep the KV of chunks that are not stored yet; `pin` keeps them from being evicted.

        Raises `InvalidInput`, before anything is computed, for a chunk that does not fit into the model's context
        behind head and stand-in passages.
        """
        return self._open().run(self._prewarm(chunks, namespace, pin, progress))

    async def aprewarm(
        self,
        chunks: Iterable[Chunk | str],
        *,
        namespace: str | None = None,
        pin: bool = False,
        progress: bool = False,
    ) -> PrewarmReport:
        return await self._open().run_async(self._prewarm(chunks, namespace, pin, progress))

    def prewarm_variants(
        self, orders: Iterable[Sequence[Chunk | str]], *, namespace: str | None = None, progress: bool = True
    ) -> VariantsReport:
        """Compute each list of chunks as one prompt, and keep the KV of those behind others as variants of theirs.

        For the policies "cachecraft" and "blend-variants", and lists that are retrieved together often; needs
        `keep_variants`. Raises `InvalidInput`, before anything is computed, for an empty list and one too long for the
        model's context.
        """
        return self._open().run(self._prewarm_variants(orders, namespace, progress))

    async def aprewarm_variants(
        self, orders: Iterable[Sequence[Chunk | str]], *, namespace: str | None = None, progress: bool = False
    ) -> VariantsReport:
        return await self._open().run_async(self._prewarm_variants(orders, namespace, progress))

    def prefetch(self, chunks: Iterable[Chunk | str], *, namespace: str | None = None) -> Future[list[str]]:
        """Begin to read caches of chunks from disk into memory, where they will be needed soon.

        Returns at once; the future has the ids of the chunks that are read. What fails is logged: the request itself
        reads what is missing.
        """
        chunk_ids = [Chunk.of(chunk).id for chunk in chunks]
        if self.config.store_dir is None or not chunk_ids:
            nothing: Future[list[str]] = Future()
            nothing.set_result([])
            return nothing
        future = self._open().submit(self._prefetch(chunk_ids, namespace))
        future.add_done_callback(_log_failure)
        return future

    def stats(self, *, namespace: str | None = None) -> dict[str, Any]:
        """Counters of the store: bytes used and allowed, chunks by tier, stored, evicted, deleted, rejected.

        Of all tenants together; with `namespace` only what one of them holds, which tells nothing of the others.
        """
        return self._open().run(self._client.stats(namespace))

    async def astats(self, *, namespace: str | None = None) -> dict[str, Any]:
        return await self._open().run_async(self._client.stats(namespace))

    def check(self) -> list[str]:
        """Faults found in the store's books, one sentence each; empty where all is well."""
        faults: list[str] = self._open().run(self._client.control({"op": "check"}))["faults"]
        return faults

    def delete(
        self,
        *,
        chunk_ids: Iterable[str] | None = None,
        document_id: str | None = None,
        everything: bool = False,
        namespace: str | None = None,
    ) -> list[str]:
        """Drop stored KV of one namespace: of chunks, of a document's chunks that no other shares, or of all.

        Returns the ids of the chunks that are gone. Exactly one of the three must be given.
        """
        return self._open().run(self._client.delete(chunk_ids, document_id, everything, namespace))

    async def adelete(
        self,
        *,
        chunk_ids: Iterable[str] | None = None,
        document_id: str | None = None,
        everything: bool = False,
        namespace: str | None = None,
    ) -> list[str]:
        return await self._open().run_async(self._client.delete(chunk_ids, document_id, everything, namespace))

    def verify(self) -> VerifyResult:
        """Prove on this engine that ratio 1.0 equals plain vLLM; takes a minute or two for a small model on a CPU."""
        from cachecraft_rag.verify import verify

        return verify(self)

    def pin(self, chunk_ids: Iterable[str], *, pinned: bool = True, namespace: str | None = None) -> list[str]:
        """Keep stored chunks from being evicted (or let them go again); returns the ids that are stored."""
        control = {"op": "pin", "chunk_ids": list(chunk_ids), "pinned": pinned}
        found: list[str] = self._open().run(self._client.control(control, namespace))["pinned"]
        return found

    def close(self) -> None:
        """End the engine process and free its memory. Requests in flight are aborted. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._loop.run(self._client.close())
            self._loop.close()

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._loop.run_async(self._client.close())
            self._loop.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _open(self) -> BackgroundLoop:
        if self._closed:
            raise EngineClosed("this engine is closed; start another ChunkEngine")
        return self._loop

    async def _generate(self, prompt: ChunkPrompt, sampling: Any, options: dict[str, Any]) -> Answer:
        answer: Answer | None = None
        async for delta in self._stream(prompt, sampling, options):
            answer = delta.answer
        assert answer is not None
        return answer

    async def _stream(self, prompt: ChunkPrompt, sampling: Any, options: dict[str, Any]) -> AsyncIterator[Delta]:
        started = time.perf_counter()
        if not isinstance(prompt, ChunkPrompt):
            raise InvalidInput(
                f"prompt={prompt!r:.60} is not a ChunkPrompt; make one with ChunkPrompt.chat(chunks, question) or "
                "ChunkPrompt.from_parts([...])"
            )
        stream = self._client.stream(prompt, sampling, options, started)
        try:
            async for delta in stream:
                if delta.answer is not None and delta.answer.report is not None:
                    self._last_report = delta.answer.report
                yield delta
        finally:
            await stream.aclose()

    async def _prefetch(self, chunk_ids: list[str], namespace: str | None) -> list[str]:
        control = {"op": "prefetch", "chunk_ids": chunk_ids}
        prefetched: list[str] = (await self._client.control(control, namespace))["prefetched"]
        return prefetched

    async def _prewarm(
        self, chunks: Iterable[Chunk | str], namespace: str | None, pin: bool, progress: bool
    ) -> PrewarmReport:
        from cachecraft_rag.vllm.prewarm import prewarm

        return await prewarm(
            self._client, [Chunk.of(chunk) for chunk in chunks], namespace=namespace, pin=pin, progress=progress
        )

    async def _prewarm_variants(
        self, orders: Iterable[Sequence[Chunk | str]], namespace: str | None, progress: bool
    ) -> VariantsReport:
        from cachecraft_rag.vllm.prewarm import prewarm_variants

        lists = [[Chunk.of(chunk) for chunk in order] for order in orders]
        return await prewarm_variants(self._client, lists, namespace=namespace, progress=progress)


def _log_failure(future: Future[list[str]]) -> None:
    if not future.cancelled() and future.exception() is not None:
        logger.warning("caches could not be read ahead: %s", future.exception())
