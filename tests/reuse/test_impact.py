import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse.impact import context_impact

amounts = st.floats(1e-6, 1e6)


@given(st.lists(st.tuples(amounts, st.integers(1, 1000)), max_size=6), amounts, st.integers(1, 1000))
def test_bounds(preceding, intra, tokens):
    impact = context_impact(np.array([a for a, _ in preceding]), [n for _, n in preceding], intra, tokens)
    assert 0.5 <= impact <= 1.0
    if not preceding:
        assert impact == 0.5


@given(amounts, amounts, st.integers(1, 100))
def test_more_attention_on_the_prefix_is_more_impact(attention, intra, tokens):
    less, more = (context_impact(np.array([a]), [10], intra, tokens) for a in (attention, 2 * attention))
    assert less <= more


def test_the_published_formula():
    # a = 6/(4*3) + 2/(4*2) = 0.75, s = 12/16 = 0.75
    assert context_impact(np.array([6.0, 2.0]), [3, 2], 12.0, 4) == pytest.approx(1 / (1 + math.exp(-1)))


@pytest.mark.parametrize(
    ("inter", "lengths", "intra", "tokens"),
    [([1.0], [1, 2], 1.0, 1), ([1.0], [0], 1.0, 1), ([-1.0], [1], 1.0, 1), ([1.0], [1], 0.0, 1), ([1.0], [1], 1.0, 0)],
)
def test_statistics_that_cannot_be_are_refused(inter, lengths, intra, tokens):
    with pytest.raises(InvalidInput, match="must be"):
        context_impact(np.array(inter), lengths, intra, tokens)
