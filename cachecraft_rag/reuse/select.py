"""From a policy's scores to the tokens that are recomputed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cachecraft_rag.reuse.selection import RepairableChunk, Scores, SelectionContext, SelectionPolicy


def select(policy: SelectionPolicy, context: SelectionContext, ratio: float, min_run: int = 1) -> npt.NDArray[np.int64]:
    """Sorted prompt positions of the tokens to recompute in the repairable chunks.

    `min_run`: tokens are chosen in groups of that many neighbours, counted from the start of their chunk (the last
    group of a chunk may be shorter), until at least the budget is reached.
    """
    if not context.chunks:
        return np.empty(0, dtype=np.int64)
    scores = policy.scores(context)
    groups = [_group(chunk, chunk_scores, min_run) for chunk, chunk_scores in zip(context.chunks, scores, strict=True)]
    if policy.shares_budget:
        merged = _Groups(*(np.concatenate(column) for column in zip(*groups, strict=True)))
        total = sum(chunk.tokens for chunk in context.chunks)
        return _best(merged, policy.budget(total, ratio))
    chosen = [
        _best(group, policy.chunk_budget(chunk, ratio)) for chunk, group in zip(context.chunks, groups, strict=True)
    ]
    return np.sort(np.concatenate(chosen))


@dataclass(frozen=True, slots=True)
class _Groups:
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    scores: Scores

    def __iter__(self) -> Any:
        return iter((self.starts, self.sizes, self.scores))


def _group(chunk: RepairableChunk, scores: Scores, size: int) -> _Groups:
    edges = np.arange(0, chunk.tokens, size)
    sizes = np.diff(np.append(edges, chunk.tokens))
    return _Groups(chunk.start + edges, sizes, np.add.reduceat(scores, edges) / sizes)


def _best(groups: _Groups, budget: int) -> npt.NDArray[np.int64]:
    if budget <= 0:
        return np.empty(0, dtype=np.int64)
    order = np.argsort(-groups.scores, kind="stable")
    needed = int(np.searchsorted(np.cumsum(groups.sizes[order]), budget)) + 1
    chosen = np.sort(order[:needed])
    return np.concatenate(
        [np.arange(s, s + n) for s, n in zip(groups.starts[chosen], groups.sizes[chosen], strict=True)]
    )
