from dataclasses import dataclass

import pytest

from cachecraft_rag.calibration.choose import Choice, choose


@dataclass(frozen=True)
class Row:
    ratio: float
    agreement: float
    agreement_low: float


ROWS = [Row(0.5, 0.999, 0.99), Row(0.05, 0.9, 0.85), Row(0.3, 0.985, 0.981), Row(0.15, 0.982, 0.97)]


@pytest.mark.parametrize(
    ("target", "choice"),
    [
        (0.8, Choice(0.05, 0.9, 0.05)),
        (0.98, Choice(0.3, 0.985, 0.15)),  # by its mean alone 0.15 would do
        (0.99, Choice(0.5, 0.999, 0.5)),
        (0.995, Choice(1.0, 1.0, 0.5)),
        (1.0, Choice(1.0, 1.0, 1.0)),
    ],
)
def test_the_least_ratio_whose_lower_end_reaches_the_target(target, choice):
    assert choose(ROWS, target) == choice
    assert choice.is_exact == (choice.ratio == 1.0)
