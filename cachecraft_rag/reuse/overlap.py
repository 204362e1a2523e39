"""How much of the context that a chunk was computed behind is there again.

The rule of Cache-Craft (SIGMOD 2025, arXiv:2502.15734), with two decisions where it is silent: KV computed behind
nothing has seen no context, and chunks that were added to the prefix count as context that was not seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cachecraft_rag.errors import InvalidInput

_ALMOST_ONE = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class PrefixChunk:
    """A chunk in front of the one that is looked at: its KV key and its length in tokens."""

    key: str
    tokens: int


def prefix_overlap(old: Sequence[PrefixChunk], inter: npt.NDArray[np.floating], new: Sequence[PrefixChunk]) -> float:
    """Attention-weighted share of the prefix that is old and new: `b`, in [0, 1], and 1 only where both are the same.

    Published: b = sum of inter over chunks in the old and the new prefix / sum of inter over the old prefix.
    `inter`: attention of the chunk's tokens on each chunk of `old`, shape [len(old)], summed over token pairs.
    An added chunk, for which no attention was measured, joins the denominator with the mean attention per token that
    the old ones received, times its tokens. An empty old prefix gives 0, unless the new one is empty too.
    """
    weights = np.asarray(inter, dtype=np.float64)
    if weights.shape != (len(old),) or not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise InvalidInput(f"inter={weights!r:.80} must hold one finite attention >= 0 for each of {len(old)} chunks")
    old_names, new_names = _occurrences([c.key for c in old]), _occurrences([c.key for c in new])
    if old_names == new_names:
        return 1.0
    if not old:
        return 0.0
    old_tokens = np.array([chunk.tokens for chunk in old], dtype=np.float64)
    if weights.sum() == 0.0:  # nothing was attended to: every token counts alike
        weights = old_tokens
    per_token = weights.sum() / old_tokens.sum()
    there, seen = set(new_names), set(old_names)
    common = weights[[name in there for name in old_names]].sum()
    added = per_token * sum(chunk.tokens for chunk, name in zip(new, new_names, strict=True) if name not in seen)
    return float(min(common / (weights.sum() + added), _ALMOST_ONE))


def order_penalty(old: Sequence[str], new: Sequence[str]) -> float:
    """Normalised Kendall tau distance of the chunks common to both prefixes: `g`, in [0, 1].

    g = discordant pairs / C(m, 2) over the m common chunks; 0 where fewer than two are common.
    """
    old_names = _occurrences(old)
    rank = {name: position for position, name in enumerate(_occurrences(new))}
    ranks = np.array([rank[name] for name in old_names if name in rank], dtype=np.int64)
    if ranks.size < 2:
        return 0.0
    first, second = np.triu_indices(ranks.size, k=1)
    return float(np.mean(ranks[first] > ranks[second]))


def adjusted_overlap(old: Sequence[PrefixChunk], inter: npt.NDArray[np.floating], new: Sequence[PrefixChunk]) -> float:
    """b' = b (1 - g): the overlap, less what the order has changed. 1 only for an identical prefix."""
    penalty = order_penalty([chunk.key for chunk in old], [chunk.key for chunk in new])
    return prefix_overlap(old, inter, new) * (1.0 - penalty)


def _occurrences(keys: Sequence[str]) -> list[tuple[str, int]]:
    """Each key with how often it came before: a chunk that is placed twice is two chunks."""
    counts: Counter[str] = Counter()
    names = []
    for key in keys:
        names.append((key, counts[key]))
        counts[key] += 1
    return names
