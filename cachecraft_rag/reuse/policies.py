"""Which tokens of a reused chunk to recompute.

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

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse.impact import LEAST_IMPACT

Scores = npt.NDArray[np.float64]
FIRST_TOKENS = 4  # of each chunk, which `question` recomputes before all others


@dataclass(frozen=True, slots=True)
class RepairableChunk:
    """A hit chunk whose new prefix differs from the one it was cached behind.

    `start`, `stop`: token positions in the prompt. `statistics`: `overhead`, its cache fix overhead at alpha = 1, and
    `attention`, that of each token on what it was computed behind, None where that was nothing.
    """

    key: str
    start: int
    stop: int
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.stop - self.start


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


class _PerChunkPolicy:
    needs_question_pass = False
    needs_deviation_pass = False
    uses_variants = False
    shares_budget = False

    def budget(self, tokens: int, ratio: float) -> int:
        return min(tokens, math.ceil(round(ratio * tokens, 9)))

    def chunk_budget(self, chunk: RepairableChunk, ratio: float) -> int:
        return self.budget(chunk.tokens, ratio)


class FirstTokens(_PerChunkPolicy):
    """The first tokens of each chunk (known as LegoLink): they see least of the new context when reused."""

    name = "first"

    def scores(self, context: SelectionContext) -> list[Scores]:
        return [-np.arange(chunk.tokens, dtype=np.float64) for chunk in context.chunks]


class RandomTokens(_PerChunkPolicy):
    """Tokens at random, the control of every comparison. Seeded by the chunk's key: the same at every request."""

    name = "random"

    def scores(self, context: SelectionContext) -> list[Scores]:
        return [
            np.random.default_rng(int(chunk.key[:16], 16)).random(chunk.tokens, dtype=np.float64)
            for chunk in context.chunks
        ]


class QuestionTokens(_PerChunkPolicy):
    """The tokens that the question attends to, of all chunks together, and the first few of each chunk.

    The question's rows run once over the reused KV, and their attention ranks the tokens: what the answer will be read
    from is repaired. The first tokens of a chunk are cheap and took the place of the prompt's beginning when the chunk
    was computed behind nothing else (see docs/benchmarks/quality.md). Where no question follows: like `first`.
    """

    name = "question"
    needs_question_pass = True
    shares_budget = True

    def scores(self, context: SelectionContext) -> list[Scores]:
        attention = context.question_attention
        if attention is None:
            return FirstTokens().scores(context)
        scores = [attention[chunk.start : chunk.stop].astype(np.float64) for chunk in context.chunks]
        above = 1.0 + max((float(own.max()) for own in scores), default=0.0)
        for chunk, own in zip(context.chunks, scores, strict=True):
            if chunk.statistics.get("attention") is None:
                own[:FIRST_TOKENS] = above + np.arange(FIRST_TOKENS, 0, -1)[: own.size]
        return scores


class QuestionVariants(QuestionTokens):
    """`question` over KV that was computed behind other chunks, where that is kept and nearer to this prompt."""

    name = "question-variants"
    uses_variants = True


class DeviatingTokens(_PerChunkPolicy):
    """The tokens, of all chunks together, whose V at an early layer is furthest from the stored one.

    The rule of CacheBlend (Yao et al., EuroSys 2025, arXiv:2405.16444), which finds that the tokens of high deviation
    on one layer are mostly those of the next ones, too. The first layer runs for all rows of the chunks.
    """

    name = "deviation"
    needs_deviation_pass = True
    shares_budget = True

    def scores(self, context: SelectionContext) -> list[Scores]:
        deviation = context.value_deviation
        if deviation is None:
            return FirstTokens().scores(context)
        return [deviation[chunk.start : chunk.stop].astype(np.float64) for chunk in context.chunks]


class CacheCraft(_PerChunkPolicy):
    """The published rule: CFO * |Ci| tokens of each chunk, those with the largest stored attention on what was before.

    Cache-Craft, SIGMOD 2025, arXiv:2502.15734. CFO = alpha * CCI * (1 - b'), where alpha is twice the ratio: of a chunk
    that nothing in front of it influenced (CCI = 1/2) and whose context is new (b' = 0) the ratio is recomputed.
    Canonical KV has no stored attention on other chunks; of it the first tokens are taken.
    """

    name = "cachecraft"
    uses_variants = True

    def chunk_budget(self, chunk: RepairableChunk, ratio: float) -> int:
        overhead = chunk.statistics.get("overhead", LEAST_IMPACT)
        return self.budget(chunk.tokens, min(1.0, ratio / LEAST_IMPACT * overhead))

    def scores(self, context: SelectionContext) -> list[Scores]:
        return [
            np.asarray(attention, dtype=np.float64)
            if attention is not None
            else -np.arange(chunk.tokens, dtype=np.float64)
            for chunk in context.chunks
            for attention in (chunk.statistics.get("attention"),)
        ]


class NoTokens(FirstTokens):
    """Naive reuse, whatever the ratio."""

    name = "none"

    def budget(self, tokens: int, ratio: float) -> int:
        return 0


class AllTokens(FirstTokens):
    """Everything is recomputed, whatever the ratio: equal to a full prefill."""

    name = "all"

    def budget(self, tokens: int, ratio: float) -> int:
        return tokens


POLICIES: Mapping[str, SelectionPolicy] = {
    policy.name: policy
    for policy in (
        FirstTokens(),
        RandomTokens(),
        CacheCraft(),
        DeviatingTokens(),
        QuestionTokens(),
        QuestionVariants(),
        NoTokens(),
        AllTokens(),
    )
}


def get_policy(name: str) -> SelectionPolicy:
    """The policy of that name; `InvalidInput` names the known ones otherwise."""
    try:
        return POLICIES[name]
    except KeyError:
        known = ", ".join(sorted(POLICIES))
        raise InvalidInput(f"unknown selection policy {name!r}; choose one of: {known}") from None


def recomputes_all(policy: str, ratio: float) -> bool:
    """Whether nothing stored can enter the result, so that it equals a full prefill."""
    return policy == "all" or (policy != "none" and ratio >= 1.0)
