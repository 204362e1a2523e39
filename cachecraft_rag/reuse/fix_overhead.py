"""How many tokens of a chunk to recompute, and which (Cache-Craft, SIGMOD 2025, arXiv:2502.15734)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cachecraft_rag.errors import InvalidInput

# The least overhead that counts in `eviction_gain`: a variant that is exact would otherwise be worth everything.
LEAST_OVERHEAD = 0.01


def fix_overhead(impact: float, overlap: float, alpha: float) -> float:
    """Cache fix overhead, CFO = alpha * CCI * (1 - b'), clamped to [0, 1]: the share of tokens to recompute.

    `impact`: CCI, see `context_impact`; `overlap`: b', see `adjusted_overlap`; `alpha` > 0 sets the level.
    """
    if not 0.0 <= impact <= 1.0 or not 0.0 <= overlap <= 1.0:
        raise InvalidInput(f"impact={impact!r} and overlap={overlap!r} must lie in [0, 1]")
    if not (math.isfinite(alpha) and alpha > 0.0):
        raise InvalidInput(f"alpha={alpha!r} must be a positive number; 1.0 is the published level")
    return min(1.0, alpha * impact * (1.0 - overlap))


def tokens_to_fix(overhead: float, attention: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """The ceil(CFO * |Ci|) tokens of a chunk with the largest stored attention on preceding chunks, sorted.

    `attention`: of each token, shape [|Ci|]. Of equal ones the earlier are taken.
    """
    count = min(len(attention), math.ceil(overhead * len(attention)))
    order = np.argsort(-np.asarray(attention, dtype=np.float64), kind="stable")
    return np.sort(order[:count])


def best_variant(overheads: Sequence[float]) -> int:
    """Index of the variant of a chunk that is cheapest to fix for a new prefix; the first of equal ones."""
    if not overheads:
        raise InvalidInput("there is no variant to choose from; give at least one overhead")
    return min(range(len(overheads)), key=lambda index: overheads[index])


def eviction_gain(overhead: float, floor: float = LEAST_OVERHEAD) -> float:
    """What one use adds to a variant's eviction score: f_r += 1 / max(CFO, floor). The lowest score is evicted."""
    if not floor > 0.0:
        raise InvalidInput(f"floor={floor!r} must be positive")
    return 1.0 / max(overhead, floor)
