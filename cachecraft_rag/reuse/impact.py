"""How much a chunk's KV depends on what stands in front of it (Cache-Craft, SIGMOD 2025, arXiv:2502.15734)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cachecraft_rag.errors import InvalidInput

LEAST_IMPACT = 0.5  # of a chunk that did not look at what was in front of it


def context_impact(inter: npt.NDArray[np.floating], prefix_tokens: Sequence[int], intra: float, tokens: int) -> float:
    """Chunk context impact, CCI = 1 / (1 + exp(-a/s)), in [0.5, 1].

    a = sum over the preceding chunks j of inter(i, j) / (|Ci| |Cj|), and s = intra(i) / |Ci|^2.
    `inter`: attention of the chunk's tokens on each preceding chunk, shape [m], and `intra`: on the chunk itself, both
    summed over token pairs and averaged over layers and heads, the system prefix left out. `prefix_tokens`: |Cj|, [m].
    0.5 means that nothing in front of it matters, as for a chunk with nothing in front of it.
    """
    attention = np.asarray(inter, dtype=np.float64)
    lengths = np.asarray(prefix_tokens, dtype=np.float64)
    if attention.shape != lengths.shape or np.any(lengths <= 0) or np.any(attention < 0):
        raise InvalidInput(
            f"inter={attention!r:.60} and prefix_tokens={lengths!r:.60} must be as long as each other, without "
            "negative attention or empty chunks"
        )
    if tokens < 1 or not intra > 0.0:
        raise InvalidInput(f"intra={intra!r} and tokens={tokens!r} must be positive: every token attends to itself")
    outside = float(np.sum(attention / lengths)) / tokens
    inside = intra / tokens**2
    return 1.0 / (1.0 + math.exp(-outside / inside))
