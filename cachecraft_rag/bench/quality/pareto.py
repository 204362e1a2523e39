"""What nothing else beats at once in cost and in quality."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(costs: Sequence[float], losses: Sequence[float]) -> list[int]:
    """Indexes of the points that no other is as good as in both and better in one, by rising cost; lower is better.

    Of points that are equal in both the first is taken.
    """
    order = sorted(range(len(costs)), key=lambda index: (costs[index], losses[index], index))
    front: list[int] = []
    for index in order:
        if not front or losses[index] < losses[front[-1]]:
            front.append(index)
    return front
