import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse.fix_overhead import best_variant, fix_overhead, overhead_at, tokens_to_fix
from cachecraft_rag.reuse.impact import LEAST_IMPACT
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


@given(impacts, alphas, st.integers(1, 100))
def test_a_neighbour_that_was_not_seen_always_costs_a_token(impact, alpha, tokens):
    seen, stranger = PrefixChunk("a", 500), PrefixChunk("b", 1)
    overlap = adjusted_overlap([seen], np.array([1e9]), [seen, stranger])
    assert tokens_to_fix(fix_overhead(impact, overlap, alpha), tokens) > 0


@given(shares, st.integers(0, 1000))
def test_as_many_tokens_as_the_overhead_says_rounded_up(overhead, tokens):
    count = tokens_to_fix(overhead, tokens)
    assert 0 <= count <= tokens
    assert count - 1 - 1e-8 <= overhead * tokens <= count + 1e-8
    assert (count == 0) == (overhead == 0.0 or tokens == 0)


def test_everything_and_nothing():
    assert [tokens_to_fix(overhead, 3) for overhead in (0.0, 5e-324, 0.4, 1.0)] == [0, 1, 2, 3]
    assert tokens_to_fix(0.15, 20) == 3
    for overhead in (-0.1, 1.1, float("nan")):
        with pytest.raises(InvalidInput, match="must lie in"):
            tokens_to_fix(overhead, 3)


@given(shares)
def test_of_canonical_kv_behind_strangers_the_ratio_is_recomputed(ratio):
    assert overhead_at(ratio, fix_overhead(LEAST_IMPACT, 0.0, 1.0)) == ratio


@given(shares, st.floats(0, 1), impacts)
def test_the_ratio_is_half_of_alpha(ratio, overlap, impact):
    expected = fix_overhead(impact, overlap, 2 * ratio) if ratio > 0 else 0.0
    assert overhead_at(ratio, fix_overhead(impact, overlap, 1.0)) == pytest.approx(expected)


@given(st.lists(shares, min_size=1))
def test_the_best_variant_is_the_cheapest(overheads):
    best = best_variant(overheads)
    assert overheads[best] == min(overheads)
    assert best == overheads.index(min(overheads))


@pytest.mark.parametrize(("impact", "overlap", "alpha"), [(1.1, 0, 1), (0.5, -0.1, 1), (0.5, 2, 1), (0.5, 0, 0)])
def test_what_lies_outside_is_refused(impact, overlap, alpha):
    with pytest.raises(InvalidInput, match=r"must (lie|be)"):
        fix_overhead(impact, overlap, alpha)


def test_no_variant_is_refused():
    with pytest.raises(InvalidInput, match="no variant"):
        best_variant([])
