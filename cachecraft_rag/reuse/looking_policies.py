"""Policies that look at the prompt: some of its rows run ahead, over what is stored."""

from __future__ import annotations

import numpy as np

from cachecraft_rag.reuse.fixed_policies import FirstTokens
from cachecraft_rag.reuse.selection import PolicyBase, Scores, SelectionContext

FIRST_TOKENS = 4  # of each chunk, which `question` recomputes before all others


class QuestionTokens(PolicyBase):
    """The tokens that the question attends to, of all chunks together, and the first few of each chunk.

    The question's rows run once over the reused KV, and their attention ranks the tokens: what the answer will be read
    from is repaired. The first tokens of a chunk are cheap and took the place of the prompt's beginning when the chunk
    was computed behind the head alone (see docs/benchmarks/quality.md). Where no question follows: like `first`.
    """

    name = "question"
    needs_question_pass = True
    shares_budget = True

    def scores(self, context: SelectionContext) -> list[Scores]:
        attention = context.question_attention
        if attention is None:
            return FirstTokens().scores(context)
        scores = context.by_chunk(attention)
        above = 1.0 + max((float(own.max()) for own in scores), default=0.0)
        for own in scores:
            own[:FIRST_TOKENS] = above + np.arange(FIRST_TOKENS, 0, -1)[: own.size]
        return scores


class DeviatingTokens(PolicyBase):
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
        return context.by_chunk(deviation)
