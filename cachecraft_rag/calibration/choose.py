"""Which ratio is the least that is good enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

EXACT = 1.0


class Row(Protocol):
    @property
    def ratio(self) -> float: ...

    @property
    def agreement(self) -> float: ...

    @property
    def agreement_low(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """`agreement`: measured at `ratio`, 1 where it is exact. `by_mean`: the least ratio whose mean alone would do."""

    ratio: float
    agreement: float
    by_mean: float

    @property
    def is_exact(self) -> bool:
        return self.ratio == EXACT


def choose(rows: Sequence[Row], target: float) -> Choice:
    """The least ratio whose agreement is at least `target` at the lower end of its interval, not in the mean alone.

    What is chosen then serves without anybody looking, so that a lucky draw of samples must not decide: the fewer they
    are, the wider the interval, and the higher the ratio. Where none reaches it, 1.0, which needs no measuring.
    """
    ordered = sorted(rows, key=lambda row: row.ratio)
    by_mean = next((row.ratio for row in ordered if row.agreement >= target), EXACT)
    found = next((row for row in ordered if row.agreement_low >= target), None)
    return Choice(EXACT, 1.0, by_mean) if found is None else Choice(found.ratio, found.agreement, by_mean)
