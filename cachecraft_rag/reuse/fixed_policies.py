"""Policies that rank tokens by what is known when a chunk is stored."""

from __future__ import annotations

import numpy as np

from cachecraft_rag.reuse.fix_overhead import overhead_at, tokens_to_fix
from cachecraft_rag.reuse.selection import PolicyBase, RepairableChunk, Scores, SelectionContext


class FirstTokens(PolicyBase):
    """The first tokens of each chunk (known as LegoLink): they see least of the new context when reused."""

    name = "first"

    def scores(self, context: SelectionContext) -> list[Scores]:
        return [-np.arange(chunk.tokens, dtype=np.float64) for chunk in context.chunks]


class RandomTokens(PolicyBase):
    """Tokens at random, the control of every comparison. Seeded by the chunk's key: the same at every request."""

    name = "random"

    def scores(self, context: SelectionContext) -> list[Scores]:
        return [
            np.random.default_rng(int(chunk.key[:16], 16)).random(chunk.tokens, dtype=np.float64)
            for chunk in context.chunks
        ]


class CacheCraft(PolicyBase):
    """The published rule: CFO * |Ci| tokens of each chunk, those with the largest stored attention on what was before.

    Cache-Craft, SIGMOD 2025, arXiv:2502.15734; see `fix_overhead` and `overhead_at`.
    Canonical KV has no stored attention on other chunks; of it the first tokens are taken.
    """

    name = "cachecraft"
    uses_variants = True

    def chunk_budget(self, chunk: RepairableChunk, ratio: float) -> int:
        return tokens_to_fix(overhead_at(ratio, chunk.overhead), chunk.tokens)

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
