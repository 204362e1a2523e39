"""What is sent to the engine for each way to answer a question."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachecraft_rag.bench.quality.data import Question
from cachecraft_rag.bench.quality.exact_prefix import reorder_to_prefixes
from cachecraft_rag.bench.quality.prompts import ask, ask_without_context
from cachecraft_rag.bench.quality.variants import EXACT_PREFIX, FULL, NO_CONTEXT, Variant
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.prompt import ChunkPrompt

_PLAIN: Mapping[str, Any] = {"reuse": False}
_FRESH: Mapping[str, Any] = {"reuse": False, "fresh": True}


@dataclass(frozen=True, slots=True)
class Way:
    """`before`: a prompt whose KV vLLM's prefix cache must hold when `prompt` is sent."""

    prompt: ChunkPrompt
    options: Mapping[str, Any]
    before: ChunkPrompt | None = None

    def apart(self, salt: str) -> Way:
        """The same where plain requests share vLLM's prefix cache only with those of that salt."""
        return self if self.options != _PLAIN else replace(self, options={**_PLAIN, "cache_salt": salt})


class Ways:
    """Those of all questions of a data set, each policy with `min_run`."""

    def __init__(self, questions: Sequence[Question], min_run: int) -> None:
        self.min_run = min_run
        self._questions = questions
        self.chunks = [question.chunks for question in questions]
        self._reordered = reorder_to_prefixes([[chunk.id for chunk in chunks] for chunks in self.chunks])

    def key(self, number: int, variant: Variant) -> str:
        """Digest of all in the data set that the answer depends on; for reordering that is earlier questions too."""
        digest = self._questions[number].digest
        if variant != EXACT_PREFIX:
            return digest
        reordered = self._reordered[number]
        return hashlib.sha256(f"{digest} {reordered.order} {reordered.shared}".encode()).hexdigest()

    def is_full_prefill(self, number: int, variant: Variant) -> bool:
        """Whether nothing is done in another way than full prefill's: there is no earlier prompt to share."""
        return variant == FULL or (variant == EXACT_PREFIX and self._reordered[number].donor is None)

    def way(self, number: int, variant: Variant) -> Way:
        question = self._questions[number].question
        if variant == NO_CONTEXT:
            return Way(ask_without_context(question), _FRESH)
        if self.is_full_prefill(number, variant):
            return Way(ask(self.chunks[number], question), _FRESH)
        if variant == EXACT_PREFIX:
            donor = self._reordered[number].donor
            assert donor is not None
            return Way(self._reordered_prompt(number), _PLAIN, self._reordered_prompt(donor))
        options = {"policy": variant.name, "recompute_ratio": variant.ratio, "min_run": self.min_run}
        return Way(ask(self.chunks[number], question), options)

    def stored_order(self, number: int) -> list[Chunk]:
        """The order, another than the question's, that variants of its passages are computed in."""
        chunks = list(self.chunks[number])
        random.Random(f"variants {self._questions[number].digest}").shuffle(chunks)
        return chunks if chunks != list(self.chunks[number]) else chunks[::-1]

    def _reordered_prompt(self, number: int) -> ChunkPrompt:
        by_id = {chunk.id: chunk for chunk in self.chunks[number]}
        return ask([by_id[chunk_id] for chunk_id in self._reordered[number].order], self._questions[number].question)
