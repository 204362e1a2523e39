"""What a selection policy is, and what it may look at.

A policy gives every token of every repairable chunk a score; the tokens with the highest scores are recomputed, up to
`ratio` of each chunk (or of all chunks together, where the policy's scores are comparable across chunks).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cachecraft_rag.reuse.impact import LEAST_IMPACT

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RepairableChunk:
    """A hit chunk whose new prefix differs from the one it was cached behind.

    `start`, `stop`: token positions in the prompt. `statistics`: `overhead`, its cache fix overhead at alpha = 1, and
    `attention`, that of each token on the chunks it was computed behind, None for canonical KV.
    """

    key: str
    start: int
    stop: int
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.stop - self.start

    @property
    def overhead(self) -> float:
        """Cache fix overhead at alpha = 1."""
        overhead: float = self.statistics.get("overhead", LEAST_IMPACT)
        return overhead


@dataclass(frozen=True, slots=True)
class SelectionContext:
    """All that a policy may look at.

    `question_attention`: for a policy with `needs_question_pass`, the attention mass of the question's rows on every
    position of the prompt, shape [prompt_tokens]; otherwise None. `value_deviation`: for one with
    `needs_deviation_pass`, how far each position's stored V is from what it should be in this prompt, alike.
    """

    prompt_tokens: int
    chunks: Sequence[RepairableChunk]
    question_attention: Scores | None = None
    value_deviation: Scores | None = None

    def by_chunk(self, values: Scores) -> list[Scores]:
        """Each chunk's part of `values`, one for each position of the prompt; copies."""
        return [values[chunk.start : chunk.stop].astype(np.float64) for chunk in self.chunks]


class SelectionPolicy(Protocol):
    """How to rank tokens for recomputation. Deterministic: the same context gives the same scores."""

    name: str
    needs_question_pass: bool
    needs_deviation_pass: bool
    uses_variants: bool
    """Whether KV that was computed behind other chunks may be reused, where such is kept, beside canonical KV."""
    shares_budget: bool
    """True: one budget over all chunks. False: each chunk has its own."""

    def budget(self, tokens: int, ratio: float) -> int:
        """How many of `tokens` to recompute at `ratio`."""
        ...

    def chunk_budget(self, chunk: RepairableChunk, ratio: float) -> int:
        """How many of one chunk's, where the budget is not shared."""
        ...

    def scores(self, context: SelectionContext) -> list[Scores]:
        """For each chunk of the context an array of [chunk.tokens]; higher is recomputed first."""
        ...


class PolicyBase:
    """What most policies have in common: canonical KV, no pass ahead, and a budget for each chunk."""

    needs_question_pass = False
    needs_deviation_pass = False
    uses_variants = False
    shares_budget = False

    def budget(self, tokens: int, ratio: float) -> int:
        return min(tokens, math.ceil(round(ratio * tokens, 9)))

    def chunk_budget(self, chunk: RepairableChunk, ratio: float) -> int:
        return self.budget(chunk.tokens, ratio)
