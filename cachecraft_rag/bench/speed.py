"""Time to first token over permuted chunks, ours beside plain vLLM: the numbers behind `cachecraft bench speed`."""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from cachecraft_rag.bench.machine import describe_machine
from cachecraft_rag.bench.memory import child_processes, peak_bytes, reset_peak
from cachecraft_rag.bench.plain import PlainEngine
from cachecraft_rag.bench.results import Measured, SpeedResult
from cachecraft_rag.bench.text import chunk_of
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.config import DEFAULT_POLICY, EngineConfig
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import ChunkPrompt

_QUESTION = "Which of these words stands nearest to the beginning?"
PREWARM_CHUNKS = 64


def bench_speed(
    model: str,
    *,
    chunks: int = 8,
    chunk_tokens: int = 512,
    ratio: float = 0.15,
    policy: str = DEFAULT_POLICY,
    repetitions: int = 5,
    dtype: str = "auto",
    progress: bool = True,
    prewarm_chunks: int = PREWARM_CHUNKS,
    cpu_store_gb: float | None = None,
) -> SpeedResult:
    """Start a plain vLLM and an engine of ours, and let them answer in turn, never both at once."""
    if repetitions < 1 or chunks < 1:
        raise InvalidInput(f"repetitions={repetitions} and chunks={chunks} must be at least 1")
    length = chunks * chunk_tokens + 512
    store = {} if cpu_store_gb is None else {"cpu_store_gb": cpu_store_gb}
    config = EngineConfig(model, dtype=dtype, max_model_len=length, kv_cache_gb=2.0, **store)  # type: ignore[arg-type]
    before = child_processes()  # of the new ones the largest is the engine; a resource tracker is another
    with PlainEngine(config) as plain:
        plain_pid = max(child_processes() - before, key=peak_bytes)
        with ChunkEngine(config) as ours:
            our_pid = max(child_processes() - before - {plain_pid}, key=peak_bytes)
            return _SpeedRun(plain, ours, (plain_pid, our_pid), progress).run(
                chunks, chunk_tokens, ratio, policy, repetitions, prewarm_chunks
            )


Variant = tuple[str, float]  # policy and ratio


@dataclass
class _Seconds:
    """TTFT of each repetition, and what share of the prompt was computed."""

    plain: list[float] = field(default_factory=list)
    prefix_cache: list[float] = field(default_factory=list)
    ours: dict[Variant, list[float]] = field(default_factory=dict)
    share: dict[Variant, float] = field(default_factory=dict)
    prompt_tokens: int = 0

    def measured(self, variant: Variant) -> Measured:
        plain, ours = statistics.median(self.plain), statistics.median(self.ours[variant])
        return Measured(
            policy=variant[0],
            ratio=variant[1],
            seconds=self.ours[variant],
            median=ours,
            share_computed=self.share[variant],
            speedup_vs_plain=plain / ours,
            speedup_vs_prefix_cache=statistics.median(self.prefix_cache) / ours,
            of_limit=plain * self.share[variant] / ours,
        )


class _SpeedRun:
    def __init__(self, plain: PlainEngine, ours: ChunkEngine, pids: tuple[int, int], progress: bool) -> None:
        self._plain = plain
        self._ours = ours
        self._plain_pid, self._our_pid = pids
        self._progress = progress

    def run(
        self, count: int, tokens: int, ratio: float, policy: str, repetitions: int, prewarm_chunks: int
    ) -> SpeedResult:
        from rich.progress import Progress

        chunks = [chunk_of(self._ours.tokenizer, tokens, seed) for seed in range(count)]
        asked = [
            (policy, ratio),
            (DEFAULT_POLICY, 0.15),
            ("first", 0.15),
            ("random", 0.15),
            ("none", 0.0),
            ("all", 1.0),
        ]
        variants = list(dict.fromkeys(asked))
        seconds = _Seconds(ours={variant: [] for variant in variants})
        with Progress(transient=True, disable=not self._progress) as bar:
            task = bar.add_task("prewarming beside plain prefill", total=2 * (repetitions + 2))
            prewarm_seconds, prefill_seconds = self._prewarm(tokens, prewarm_chunks)
            self._ours.prewarm(chunks, progress=False)
            bar.advance(task, repetitions + 1)
            bar.update(task, description="answering in turn")
            for number, order in enumerate(self._orders(count, repetitions + 1)):
                # The first round warms up.
                self._round([chunks[index] for index in order], variants, seconds if number > 0 else None)
                bar.advance(task)
        stats = self._ours.stats()
        token_bytes = stats["used_bytes"] // max(1, stats["tokens"])
        plain_peak = peak_bytes(self._plain_pid)
        first = seconds.measured(variants[0])
        return SpeedResult(
            model=Path(self._ours.config.model).name,
            dtype=self._ours.dtype,
            policy=policy,
            ratio=ratio,
            prompt_tokens=seconds.prompt_tokens,
            chunks=count,
            chunk_tokens=tokens,
            repetitions=repetitions,
            plain=statistics.median(seconds.plain),
            prefix_cache=statistics.median(seconds.prefix_cache),
            ours=first.median,
            speedup_vs_plain=first.speedup_vs_plain,
            speedup_vs_prefix_cache=first.speedup_vs_prefix_cache,
            share_computed=first.share_computed,
            of_limit=first.of_limit,
            prewarm_vs_plain=prewarm_seconds / prefill_seconds,
            prewarm_tokens_per_second=prewarm_chunks * tokens / prewarm_seconds,
            memory_plain=plain_peak,
            memory_ours=peak_bytes(self._our_pid),
            memory_allowed=plain_peak + stats["capacity_bytes"] + token_bytes * seconds.prompt_tokens,
            plain_seconds=seconds.plain,
            prefix_cache_seconds=seconds.prefix_cache,
            variants=tuple(seconds.measured(variant) for variant in variants),
            machine=describe_machine(),
        )

    def _round(self, chunks: list[Chunk], variants: list[Variant], seconds: _Seconds | None) -> None:
        """One order of the chunks, answered each way in turn."""
        prompt = ChunkPrompt.chat(chunks, _QUESTION)
        token_ids = self._ours.tokenizer.encode(prompt).token_ids
        reset_peak(self._plain_pid)
        plain = self._plain.first_token_seconds(token_ids, fresh=True)
        prefix_cache = self._plain.first_token_seconds(token_ids, fresh=False)
        reset_peak(self._our_pid)
        answers = {
            (policy, ratio): self._ours.generate(prompt, policy=policy, recompute_ratio=ratio, max_tokens=1)
            for policy, ratio in variants
        }
        for variant, answer in answers.items():
            assert answer.report is not None
            if answer.report.hits != len(chunks):
                raise AssertionError(f"chunks were not all hits: {answer.report}")
            if seconds is not None:
                seconds.ours[variant].append(answer.first_token_seconds)
                seconds.share[variant] = max(seconds.share.get(variant, 0.0), answer.report.share_computed)
        if seconds is not None:
            seconds.plain.append(plain)
            seconds.prefix_cache.append(prefix_cache)
            seconds.prompt_tokens = len(token_ids)

    def _prewarm(self, tokens: int, count: int) -> tuple[float, float]:
        """Seconds to prewarm `count` chunks, and for plain vLLM to prefill them behind the head; by quarters."""
        tokenizer = self._ours.tokenizer
        head = tokenizer.head_token_ids
        ours = plain = 0.0
        self._ours.prewarm([chunk_of(tokenizer, tokens, 999)], progress=False)
        self._plain.prefill_seconds([[*head, *tokenizer.encode_chunk(chunk_of(tokenizer, tokens, 999))]])
        size = max(1, count // 4)
        for first in range(0, count, size):
            chunks = [chunk_of(tokenizer, tokens, 1000 + seed) for seed in range(first, min(count, first + size))]
            plain += self._plain.prefill_seconds([[*head, *tokenizer.encode_chunk(chunk)] for chunk in chunks])
            ours += self._store(chunks)
        return ours, plain

    def _store(self, chunks: list[Chunk]) -> float:
        report = self._ours.prewarm(chunks, progress=False)
        if len(report.stored) != len(chunks):
            raise AssertionError(f"not all chunks were stored: {report}")
        self._ours.delete(chunk_ids=report.stored)
        return report.seconds

    def _orders(self, count: int, repetitions: int) -> list[tuple[int, ...]]:
        """Distinct orders where there are enough of them; the first chunk changes as often as it can."""
        rng = random.Random(7)
        orders: list[tuple[int, ...]] = []
        while len(orders) < repetitions:
            order = tuple(rng.sample(range(count), count))
            used_up = len(orders) >= count or order[0] not in {other[0] for other in orders}
            if used_up and (order not in orders or count < 4):
                orders.append(order)
        return orders
