"""Intervals by drawing questions again and again, the same ones for all that is compared."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Columns = npt.NDArray[np.float64]
SAMPLES = 2000
_LEVEL = 0.95


def paired_bootstrap(
    columns: Columns, statistic: Callable[[Columns], Columns], *, samples: int = SAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """95% percentile interval of a statistic over questions (Efron and Tibshirani, 1993, chapter 13).

    `columns`: [questions, k], what is compared side by side, so that a question that is drawn is drawn for all of
    them. `statistic`: from column means, [samples, k], to values, [samples]; NaN where it is not defined. None where
    it is defined in fewer than half of the samples.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, len(columns), size=(samples, len(columns)))
    values = statistic(np.stack([columns[rows].mean(axis=0) for rows in drawn]))
    values = values[np.isfinite(values)]
    if values.size < samples / 2:
        return None
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)


def divided(values: Columns, others: Columns) -> Columns:
    """Element by element; NaN where there is nothing to divide by."""
    return np.divide(values, others, out=np.full_like(values, np.nan), where=others > 0)
