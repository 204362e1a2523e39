"""How many tokens of a chunk to recompute, and of which variant (Cache-Craft, SIGMOD 2025, arXiv:2502.15734)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse.impact import LEAST_IMPACT


def fix_overhead(impact: float, overlap: float, alpha: float) -> float:
    """Cache fix overhead, CFO = alpha * CCI * (1 - b'), clamped to [0, 1]: the share of tokens to recompute.

    `impact`: CCI, see `context_impact`; `overlap`: b', see `adjusted_overlap`; `alpha` > 0 sets the level. Raises
    `InvalidInput` for an impact or overlap outside [0, 1] and for an alpha that is not positive and finite.
    """
    if not 0.0 <= impact <= 1.0 or not 0.0 <= overlap <= 1.0:
        raise InvalidInput(f"impact={impact!r} and overlap={overlap!r} must lie in [0, 1]")
    if not (math.isfinite(alpha) and alpha > 0.0):
        raise InvalidInput(f"alpha={alpha!r} must be a positive number; 1.0 is the published level")
    return min(1.0, alpha * impact * (1.0 - overlap))


def overhead_at(ratio: float, overhead: float) -> float:
    """CFO in [0, 1] where `overhead`, CCI * (1 - b'), is what it is at alpha = 1, and alpha is twice the ratio.

    Of a chunk that nothing in front of it influenced (CCI = 1/2) and whose context is new (b' = 0) that is the ratio.
    """
    return min(1.0, ratio / LEAST_IMPACT * overhead)


def tokens_to_fix(overhead: float, tokens: int) -> int:
    """ceil(CFO * |Ci|), how many of a chunk's `tokens` are recomputed: at least one unless its CFO is 0.

    Raises `InvalidInput` for an `overhead` outside [0, 1].
    """
    if not 0.0 <= overhead <= 1.0:
        raise InvalidInput(f"overhead={overhead!r} must lie in [0, 1]")
    wanted = math.ceil(round(overhead * tokens, 9))  # 0.15 * 20 is a little above 3
    return min(tokens, max(wanted, int(overhead > 0.0)))


def best_variant(overheads: Sequence[float]) -> int:
    """Index of the variant of a chunk that is cheapest to fix for a new prefix; the first of equal ones.

    Raises `InvalidInput` where there is none.
    """
    if not overheads:
        raise InvalidInput("there is no variant to choose from; give at least one overhead")
    return min(range(len(overheads)), key=lambda index: overheads[index])
