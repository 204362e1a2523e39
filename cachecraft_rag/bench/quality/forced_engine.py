"""An engine of ours that can be made to say given tokens, and that tells the logits of what it says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cachecraft_rag.answer import Answer
from cachecraft_rag.bench.quality.divergence import Logits
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.prompt import ChunkPrompt

EXTRA_ARG = "cachecraft_forcing"
FOLDER = "cachecraft_forcing_folder"
_PROCESSOR = "cachecraft_rag.bench.quality.forcing:ForcedTokens"


@dataclass(frozen=True, slots=True)
class Said:
    """`logits`: what the model gave for each token of the answer, float32 [tokens, vocabulary]."""

    answer: Answer
    logits: Logits


@dataclass(frozen=True, slots=True)
class Saying:
    """A request under way. `token_ids`: what it is made to say first; `path`: where its logits are written."""

    future: Future[Answer]
    token_ids: tuple[int, ...]
    path: Path

    def result(self) -> Said:
        """Wait for it; an interrupted wait (Ctrl-C) aborts it."""
        try:
            answer = self.future.result()
            logits = np.fromfile(self.path, dtype=np.float32).reshape(len(answer.token_ids), -1)
        finally:
            self.cancel()
        assert answer.token_ids[: len(self.token_ids)] == self.token_ids
        return Said(answer, logits)

    def cancel(self) -> bool:
        self.path.unlink(missing_ok=True)
        return self.future.cancel()


class ForcedEngine:
    """Requests go through the serving path as any other's do; `engine` takes ordinary ones."""

    def __init__(self, engine: ChunkEngine, folder: Path) -> None:
        self.engine = engine
        self._folder = folder
        self._numbers = itertools.count()

    def say(self, prompt: ChunkPrompt, max_tokens: int, **options: Any) -> Said:
        """A greedy answer."""
        return self._submit(prompt, (), max_tokens=max_tokens, **options).result()

    def force(self, prompt: ChunkPrompt, token_ids: Sequence[int], **options: Any) -> Said:
        """Exactly `token_ids` as the answer, whatever the model prefers (teacher forcing)."""
        return self.submit_forced(prompt, token_ids, **options).result()

    def submit_forced(self, prompt: ChunkPrompt, token_ids: Sequence[int], **options: Any) -> Saying:
        """`force` without waiting."""
        return self._submit(prompt, token_ids, max_tokens=len(token_ids), ignore_eos=True, **options)

    def forget_prompts(self) -> None:
        """Later chunk requests find nothing in vLLM's prefix cache of what earlier ones computed. Chunks stay stored.

        An empty deletion does that: it begins a new epoch, and the epoch is a part of the cache's salt.
        """
        self.engine.delete(chunk_ids=())

    def _submit(self, prompt: ChunkPrompt, token_ids: Sequence[int], **options: Any) -> Saying:
        name = f"request-{next(self._numbers)}"
        forcing = {EXTRA_ARG: {"name": name, "token_ids": list(token_ids)}}
        future = self.engine.submit(prompt, extra_args=forcing, **options)
        return Saying(future, tuple(token_ids), self._folder / name)


@contextmanager
def start_forced_engine(model: str, **options: Any) -> Iterator[ForcedEngine]:
    """An engine of its own for measuring; `options` are those of `EngineConfig`."""
    with TemporaryDirectory(prefix="cachecraft-quality-") as folder:
        vllm_args = {
            **options.pop("vllm_args", {}),
            "logits_processors": [_PROCESSOR],
            "additional_config": {FOLDER: folder},
        }
        with ChunkEngine(model, vllm_args=vllm_args, **options) as engine:
            yield ForcedEngine(engine, Path(folder))
