import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse.fix_overhead import LEAST_OVERHEAD, best_variant, eviction_gain, fix_overhead, tokens_to_fix
from cachecraft_rag.reuse.overlap import PrefixChunk, adjusted_overlap

shares = st.floats(0, 1)
impacts = st.floats(0.5, 1)
alphas = st.floats(0.01, 100)


@given(impacts, shares, alphas)
def test_bounds(impact, overlap, alpha):
    overhead = fix_overhead(impact, overlap, alpha)
    assert 0.0 <= overhead <= 1.0
    assert (overhead == 0.0) == (overlap == 1.0)
    assert overhead <= fix_overhead(impact, overlap, 2 * alpha)


@given(impacts, alphas)
def test_a_neighbour_that_was_not_seen_always_costs_a_token(impact, alpha):
    seen, stranger = PrefixChunk("a", 500), PrefixChunk("b", 1)
    overlap = adjusted_overlap([seen], np.array([1e9]), [seen, stranger])
    assert tokens_to_fix(fix_overhead(impact, overlap, alpha), np.ones(3)).size > 0


@given(shares, arrays(np.float32, st.integers(1, 50), elements=st.floats(0, 1, width=32)))
def test_the_tokens_are_those_with_the_most_attention(overhead, attention):
    chosen = tokens_to_fix(overhead, attention)
    assert chosen.size - 1 < overhead * attention.size <= chosen.size
    assert np.all(np.diff(chosen) > 0)
    rest = np.setdiff1d(np.arange(attention.size), chosen)
    if chosen.size and rest.size:
        assert attention[chosen].min() >= attention[rest].max()


def test_everything_and_nothing():
    attention = np.array([3.0, 1.0, 2.0])
    assert tokens_to_fix(0.0, attention).size == 0
    assert tokens_to_fix(1.0, attention).tolist() == [0, 1, 2]
    assert tokens_to_fix(0.4, attention).tolist() == [0, 2]


@given(st.lists(shares, min_size=1))
def test_the_best_variant_is_the_cheapest(overheads):
    best = best_variant(overheads)
    assert overheads[best] == min(overheads)
    assert best == overheads.index(min(overheads))


@given(shares)
def test_the_gain_of_a_use_is_bounded(overhead):
    assert 1.0 <= eviction_gain(overhead) <= 1.0 / LEAST_OVERHEAD
    assert eviction_gain(overhead) <= eviction_gain(overhead / 2)


@pytest.mark.parametrize(("impact", "overlap", "alpha"), [(1.1, 0, 1), (0.5, -0.1, 1), (0.5, 2, 1), (0.5, 0, 0)])
def test_what_lies_outside_is_refused(impact, overlap, alpha):
    with pytest.raises(InvalidInput, match=r"must (lie|be)"):
        fix_overhead(impact, overlap, alpha)


def test_no_variant_and_no_floor_are_refused():
    with pytest.raises(InvalidInput, match="no variant"):
        best_variant([])
    with pytest.raises(InvalidInput, match="floor=0"):
        eviction_gain(0.5, floor=0)
