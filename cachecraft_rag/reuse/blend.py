"""The policy that takes in turn what a chunk lacks whatever is asked, and what is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cachecraft_rag.reuse.impact import LEAST_IMPACT
from cachecraft_rag.reuse.selection import PolicyBase, RepairableChunk, Scores, SelectionContext

FIXED_TOKENS = 8  # of each chunk, which are recomputed before the question is looked at


class Blend(PolicyBase):
    """The first tokens of each chunk and those that the question attends to, in turn, of all chunks together.

    Neither alone is best everywhere (docs/benchmarks/quality.md): the first tokens hold what a chunk lacks whatever is
    asked, the question's attention finds where the answer will be read from. The first `FIXED_TOKENS` of each chunk
    come before all, then one of each kind. What was computed behind other chunks counts by its cache fix overhead: its
    tokens of largest stored attention take the place of the first ones, fewer of them the less its context has changed,
    and the question's attention on it weighs as much less. Where no question follows: the fixed order alone.
    """

    name = "blend"
    needs_question_pass = True
    shares_budget = True

    def scores(self, context: SelectionContext) -> list[Scores]:
        needs = [_changed(chunk) for chunk in context.chunks]
        fixed = np.concatenate([_fixed_rank(*pair) for pair in zip(context.chunks, needs, strict=True)])
        order = fixed - FIXED_TOKENS  # negative: before all others
        attention = context.question_attention
        if attention is not None:
            rest = order >= 0
            weighted = [own * need for own, need in zip(context.by_chunk(attention), needs, strict=True)]
            asked = np.concatenate(weighted)
            order[rest] = np.minimum(_ranks(fixed[rest]), _ranks(-asked[rest]) + 0.5)
        return np.split(-order, np.cumsum([chunk.tokens for chunk in context.chunks])[:-1])


class BlendVariants(Blend):
    """`blend` over KV that was computed behind other chunks, where that is kept and nearer to this prompt."""

    name = "blend-variants"
    uses_variants = True


def _changed(chunk: RepairableChunk) -> float:
    """How much of what a chunk was computed behind has changed, 1 for canonical KV."""
    return max(chunk.overhead / LEAST_IMPACT, 1e-3)


def _fixed_rank(chunk: RepairableChunk, changed: float) -> Scores:
    """Each token's place in the order that does not look at the question, the later the less has changed."""
    attention = chunk.statistics.get("attention")
    ranks = np.arange(chunk.tokens, dtype=np.float64) if attention is None else _ranks(-np.asarray(attention))
    return (ranks + 0.5) / changed


def _ranks(values: npt.NDArray[np.floating[Any]]) -> Scores:
    """Place of each value in rising order, from 0; equal ones in the order given."""
    ranks = np.empty(values.size)
    ranks[np.argsort(values, kind="stable")] = np.arange(values.size)
    return ranks
