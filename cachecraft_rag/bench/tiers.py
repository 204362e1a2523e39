"""Time to first token from host memory and from disk: `cachecraft bench tiers`."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cachecraft_rag.bench.text import chunk_of
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.store.directory import ENTRY_SUFFIX

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class TierSeconds:
    """Medians of the time to first token. `cold`: read from the device, after the system has forgotten the files."""

    ratio: float
    memory: float
    disk: float
    cold: float


@dataclass(frozen=True, slots=True)
class TiersResult:
    model: str
    dtype: str
    prompt_tokens: int
    chunk_bytes: int
    repetitions: int
    seconds: tuple[TierSeconds, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        size = self.chunk_bytes / (1 << 20)
        lines = [
            f"{self.model}, {self.dtype}: {self.prompt_tokens:,} tokens, {size:,.0f} MiB of chunks, first token",
            f"{'ratio':>6} {'memory':>10} {'disk':>10} {'':>7} {'cold disk':>10}",
        ]
        lines += [
            f"{s.ratio:6g} {s.memory:8.3f} s {s.disk:8.3f} s {s.disk / s.memory:6.2f}x "
            f"{s.cold:8.3f} s {s.cold / s.memory:6.2f}x"
            for s in self.seconds
        ]
        return "\n".join(lines)


def bench_tiers(
    model: str, *, chunks: int = 8, chunk_tokens: int = 512, repetitions: int = 3, dtype: str = "auto"
) -> TiersResult:
    """Memory holds the chunks of one prompt. Two sets of chunks take turns in it, each sending the other to disk."""
    with tempfile.TemporaryDirectory(prefix="cachecraft-tiers-") as folder:
        token_bytes = _token_bytes(model, dtype, Path(folder) / "probe")
        capacity = (chunks + 0.5) * (chunk_tokens + 8) * token_bytes
        with ChunkEngine(
            model,
            dtype=dtype,
            store_dir=Path(folder) / "store",
            cpu_store_gb=capacity / _GIB,
            max_model_len=chunks * chunk_tokens + 512,
            kv_cache_gb=2.0,
            enable_prefix_caching=False,
        ) as engine:
            sets = [
                [chunk_of(engine.tokenizer, chunk_tokens, seed + first) for seed in range(chunks)] for first in (0, 500)
            ]
            for one in sets:
                engine.prewarm(one, progress=False)
            run = _Run(engine, Path(folder) / "store", sets)
            seconds = tuple(run.measure(ratio, repetitions) for ratio in (0.15, 0.0))
            return TiersResult(
                model=Path(model).name,
                dtype=engine.dtype,
                prompt_tokens=run.prompt_tokens,
                chunk_bytes=chunks * chunk_tokens * token_bytes,
                repetitions=repetitions,
                seconds=seconds,
            )


class _Run:
    def __init__(self, engine: ChunkEngine, store_dir: Path, sets: Sequence[Sequence[Chunk]]) -> None:
        self._engine = engine
        self._store_dir = store_dir
        self._sets = sets
        self.prompt_tokens = 0

    def measure(self, ratio: float, repetitions: int) -> TierSeconds:
        memory, disk, cold = [], [], []
        self._ask(0, 0, ratio)  # warms up, and leaves the first set in memory
        for turn in range(repetitions):
            disk.append(self._ask(1, turn, ratio))
            memory.append(self._ask(1, turn + 1, ratio))
            self._forget_files()
            cold.append(self._ask(0, turn, ratio))
            memory.append(self._ask(0, turn + 1, ratio))
        return TierSeconds(ratio, statistics.median(memory), statistics.median(disk), statistics.median(cold))

    def _ask(self, number: int, turn: int, ratio: float) -> float:
        chunks = self._sets[number]
        shift = turn % len(chunks)
        prompt = ChunkPrompt.chat([*chunks[shift:], *chunks[:shift]], "Which of these words stands first?")
        answer = self._engine.generate(prompt, recompute_ratio=ratio, max_tokens=1)
        assert answer.report is not None
        if answer.report.hits != len(chunks):
            raise AssertionError(f"chunks were not all hits: {answer.report}")
        self.prompt_tokens = answer.prompt_tokens
        return answer.first_token_seconds

    def _forget_files(self) -> None:
        """Have the system drop the files from its page cache."""
        os.sync()
        for path in self._store_dir.rglob(f"*{ENTRY_SUFFIX}"):
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def _token_bytes(model: str, dtype: str, store_dir: Path) -> int:
    """KV bytes of one token, asked of an engine that stores a chunk."""
    options: dict[str, Any] = {"dtype": dtype, "max_model_len": 512, "kv_cache_gb": 0.25}
    with ChunkEngine(model, store_dir=store_dir, **options) as engine:
        engine.prewarm([chunk_of(engine.tokenizer, 64, 1)], progress=False)
        stats = engine.stats()
        return int(stats["used_bytes"] // stats["tokens"])
