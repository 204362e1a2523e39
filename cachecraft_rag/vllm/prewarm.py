"""Storing chunks ahead of the questions: each in a request of its own behind head and stand-in passages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any

from cachecraft_rag.answer import PrewarmReport, VariantsReport
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.report import STORED_NOW, Outcome, RequestReport
from cachecraft_rag.tokenise import EncodedPrompt, Segment
from cachecraft_rag.vllm.sampling import make_sampling

if TYPE_CHECKING:
    from cachecraft_rag.vllm.client import EngineClient
    from cachecraft_rag.vllm.requests import Requests

_IN_FLIGHT = 256
_LOOKUP_BATCH = 1000


def encode_for_prewarm(head: Sequence[int], token_ids: Sequence[int], chunk: Segment) -> EncodedPrompt:
    """Head, chunk, and one token more: vLLM computes the last token of any prompt itself, out of our sight."""
    return _behind_head(head, [(token_ids, chunk)])


def _behind_head(head: Sequence[int], chunks: Sequence[tuple[Sequence[int], Segment]]) -> EncodedPrompt:
    """`chunks`: the ids of each, and a segment that names it."""
    ids = list(head)
    segments = [Segment("text", 0, len(ids))] if ids else []
    for token_ids, chunk in chunks:
        stop = len(ids) + len(token_ids)
        segments.append(Segment("chunk", len(ids), stop, chunk.chunk_id, chunk.digest, chunk.document_id))
        ids += token_ids
    segments.append(Segment("text", len(ids), len(ids) + 1))
    return EncodedPrompt((*ids, ids[-1]), tuple(segments))


class QueuedPrewarm:
    """A prewarm that the engine has."""

    def __init__(self, requests: Requests, collector: Any) -> None:
        self._requests = requests
        self._collector = collector

    async def report(self) -> RequestReport:
        """Wait for it; cancelling the wait aborts it."""
        output = await self._requests.last_output(self._collector)
        return RequestReport.from_dict(output.kv_transfer_params["cachecraft"]["report"])


async def enqueue_prewarm(
    client: EngineClient, prompt: EncodedPrompt, namespace: str | None, policy: str = "none"
) -> QueuedPrewarm:
    """Hand a prewarm to the engine; what comes later is scheduled behind it. With policy "all" nothing is reused."""
    params = client.request_params(prompt, namespace=namespace, policy=policy, recompute_ratio=0.0, prewarm=True)
    sampling = make_sampling(None, {"max_tokens": 1, "detokenize": False})
    return QueuedPrewarm(client.requests, await client.requests.enqueue(prompt.token_ids, sampling, params))


async def prewarm(
    client: EngineClient, chunks: Sequence[Chunk], *, namespace: str | None, pin: bool, progress: bool
) -> PrewarmReport:
    """Store the chunks that are not stored, in memory and on disk; equal texts are computed once."""
    client.check_writable("prewarm")
    started = time.perf_counter()
    prompts = _encode_all(client, chunks)
    missing = await _missing(client, chunks, namespace, pin)
    present = [chunk.id for number, chunk in enumerate(chunks) if number not in missing]
    waiting = {chunks[number].digest: number for number in sorted(missing, reverse=True)}
    stored: list[str] = []
    refused: dict[str, str] = {}
    tokens = 0
    new = [prompts[number] for number in waiting.values()]
    async with aclosing(_reports(client, new, namespace, "none", progress)) as reports:
        async for report in reports:
            (line,) = report.chunks
            if line.outcome is Outcome.HIT:
                present.append(line.chunk_id)
            elif line.reason.endswith(STORED_NOW):
                stored.append(line.chunk_id)
                tokens += line.tokens
            else:
                refused[line.chunk_id] = line.reason
    await client.flush()
    if len(missing) > len(waiting) or (pin and missing):
        # Documents that share a text, pins of what is stored now.
        gone = {chunks[number].id for number in await _missing(client, chunks, namespace, pin)} - set(refused)
        if pin:
            refused |= dict.fromkeys(gone, "it left the store before it could be pinned")
            stored = [chunk_id for chunk_id in stored if chunk_id not in gone]
            present = [chunk_id for chunk_id in present if chunk_id not in gone]
    return PrewarmReport(tuple(stored), tuple(dict.fromkeys(present)), refused, tokens, time.perf_counter() - started)


async def prewarm_variants(
    client: EngineClient, orders: Sequence[Sequence[Chunk]], *, namespace: str | None, progress: bool
) -> VariantsReport:
    """Compute lists of chunks, each as one prompt, and keep the KV of those that stand behind others."""
    client.check_writable("prewarm_variants")
    if client.config.keep_variants == 0:
        raise InvalidInput("prewarm_variants() needs EngineConfig(keep_variants=N), which is 0: nothing would be kept")
    started = time.perf_counter()
    head = client.tokenizer.head_token_ids
    prompts = []
    for number, order in enumerate(orders):
        ids = [client.tokenizer.encode_chunk(chunk) for chunk in order]
        named = [Segment("chunk", 0, 1, chunk.id, chunk.digest, chunk.document_id) for chunk in order]
        prompt = _behind_head(head, list(zip(ids, named, strict=True)))
        if not order or len(prompt.token_ids) >= client.max_model_len:
            raise InvalidInput(
                f"order {number} has {len(order)} chunks of {sum(map(len, ids))} tokens, {len(head)} of the head come "
                f"before them, and the model's context holds {client.max_model_len}; give at least one, and fewer"
            )
        prompts.append(prompt)
    stored = 0
    async with aclosing(_reports(client, prompts, namespace, "all", progress)) as reports:
        async for report in reports:
            stored += report.variants_stored
    await client.flush()
    behind_others = sum(len(order) - 1 for order in orders)
    return VariantsReport(behind_others, stored, time.perf_counter() - started)


async def _reports(
    client: EngineClient, prompts: Sequence[EncodedPrompt], namespace: str | None, policy: str, progress: bool
) -> AsyncGenerator[RequestReport, None]:
    """Send prewarms, many at once, and give their reports as they come. What is under way when it ends is aborted."""
    limit = asyncio.Semaphore(_IN_FLIGHT)

    async def one(prompt: EncodedPrompt) -> RequestReport:
        async with limit:
            return await (await enqueue_prewarm(client, prompt, namespace, policy)).report()

    with _progress_bar(len(prompts), progress) as advance:
        tasks = [asyncio.create_task(one(prompt)) for prompt in prompts]
        try:
            for done in asyncio.as_completed(tasks):
                yield await done
                advance()
        finally:
            for task in tasks:
                task.cancel()


def _encode_all(client: EngineClient, chunks: Sequence[Chunk]) -> list[EncodedPrompt]:
    head = client.canonical_prefix
    prompts = []
    for chunk in chunks:
        token_ids = client.tokenizer.encode_chunk(chunk)
        segment = Segment("chunk", 0, len(token_ids), chunk.id, chunk.digest, chunk.document_id)
        prompt = encode_for_prewarm(head, token_ids, segment)
        if len(prompt.token_ids) >= client.max_model_len:
            raise InvalidInput(
                f"chunk {chunk.id} has {len(token_ids)} tokens, and {len(head)} of head and stand-in passages come "
                f"before it, but the model's context holds {client.max_model_len}; split it into smaller chunks, or "
                "give stand_in=()"
            )
        prompts.append(prompt)
    return prompts


async def _missing(client: EngineClient, chunks: Sequence[Chunk], namespace: str | None, pin: bool) -> set[int]:
    missing: set[int] = set()
    for first in range(0, len(chunks), _LOOKUP_BATCH):
        batch = chunks[first : first + _LOOKUP_BATCH]
        lines = [[chunk.id, chunk.digest, chunk.document_id] for chunk in batch]
        answer = await client.control({"op": "missing", "chunks": lines, "pinned": pin}, namespace)
        missing.update(first + number for number in answer["missing"])
    return missing


@contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Any]:
    if not shown or total == 0:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("prewarming"), BarColumn(), MofNCompleteColumn(), TextColumn("chunks"), TimeRemainingColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("prewarming", total=total)
        yield lambda: bar.advance(task)
