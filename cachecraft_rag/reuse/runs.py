"""Token positions as runs of neighbours."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]


def positions_to_runs(positions: Positions) -> npt.NDArray[np.int64]:
    """Runs of neighbouring positions.

    `positions`: strictly increasing, shape [n]. Returns [runs, 2]: start and stop (exclusive) of each run, in order.
    """
    if positions.size == 0:
        return np.empty((0, 2), dtype=np.int64)
    breaks = np.flatnonzero(np.diff(positions) != 1)
    starts = positions[np.concatenate(([0], breaks + 1))]
    stops = positions[np.concatenate((breaks, [positions.size - 1]))] + 1
    return np.stack((starts, stops), axis=1).astype(np.int64, copy=False)


def first_rows(positions: Positions, max_rows: int, max_runs: int) -> int:
    """How many of the first `positions` make at most `max_rows` rows and at most `max_runs` runs.

    At least 1 for non-empty positions, provided both limits are at least 1.
    """
    rows = min(positions.size, max_rows)
    if rows == 0:
        return 0
    new_run = np.diff(positions[:rows]) != 1
    run_of_row = np.concatenate(([1], 1 + np.cumsum(new_run)))
    return int(np.searchsorted(run_of_row, max_runs, side="right"))


def count_in(positions: Positions, start: int, stop: int) -> int:
    """How many of sorted `positions` lie in `start` to `stop` (exclusive)."""
    first, last = np.searchsorted(positions, (start, stop))
    return int(last - first)
