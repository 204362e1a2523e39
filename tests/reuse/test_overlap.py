from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse.overlap import PrefixChunk, adjusted_overlap, order_penalty, prefix_overlap

LENGTHS = {letter: 10 * (number + 1) for number, letter in enumerate("abcdefgh")}
orders = st.lists(st.sampled_from("abcdefgh"), max_size=8, unique=True)
repeating = st.lists(st.sampled_from("abc"), max_size=6)


def prefix(keys):
    return [PrefixChunk(key, LENGTHS[key]) for key in keys]


def attention(keys):
    return np.array([1.0 + ord(key) % 5 for key in keys])


def adjusted(old, new):
    return adjusted_overlap(prefix(old), attention(old), prefix(new))


def overlap(old, new):
    return prefix_overlap(prefix(old), attention(old), prefix(new))


@given(repeating | orders, repeating | orders)
def test_bounds(old, new):
    assert 0.0 <= overlap(old, new) <= 1.0
    assert 0.0 <= order_penalty(old, new) <= 1.0
    assert 0.0 <= adjusted(old, new) <= overlap(old, new)


@given(repeating | orders)
def test_an_identical_prefix_overlaps_in_full(old):
    assert adjusted(old, old) == 1.0


@given(repeating | orders, repeating | orders)
def test_only_an_identical_prefix_overlaps_in_full(old, new):
    if old != new:
        assert adjusted(old, new) < 1.0


@given(orders.filter(lambda keys: len(keys) > 1))
def test_a_reversed_order_takes_the_full_penalty(old):
    assert order_penalty(old, old[::-1]) == 1.0
    assert adjusted(old, old[::-1]) == 0.0


@given(orders.filter(bool))
def test_nothing_seen_is_no_overlap(new):
    assert adjusted([], new) == 0.0
    assert adjusted([], []) == 1.0


@given(orders.filter(lambda keys: len(keys) < 8), st.data())
def test_a_neighbour_that_was_not_seen_lowers_the_overlap(old, data):
    stranger = data.draw(st.sampled_from([key for key in "abcdefgh" if key not in old]))
    at = data.draw(st.integers(0, len(old)))
    new = [*old[:at], stranger, *old[at:]]
    assert overlap(old, new) < 1.0
    if old:
        assert overlap(old, new) > 0.0


@given(orders.filter(lambda keys: len(keys) > 1))
def test_the_overlap_falls_with_each_chunk_that_is_missing(old):
    shares = [overlap(old, old[:count]) for count in range(len(old) + 1)]
    assert all(less < more for less, more in pairwise(shares))
    assert shares[0] == 0.0


@given(orders)
def test_attention_of_zero_falls_back_to_lengths(old):
    nothing = np.zeros(len(old))
    assert prefix_overlap(prefix(old), nothing, prefix(old)) == 1.0
    if len(old) > 1:
        expected = LENGTHS[old[0]] / sum(LENGTHS[key] for key in old)
        assert prefix_overlap(prefix(old), nothing, prefix(old[:1])) == pytest.approx(expected)


def test_the_published_formula_where_nothing_was_added():
    assert prefix_overlap(prefix("abc"), np.array([1.0, 2.0, 5.0]), prefix("ca")) == pytest.approx(6 / 8)
    assert order_penalty("abc", "ca") == 1.0
    assert order_penalty("abcd", "abdc") == pytest.approx(1 / 6)


def test_an_added_chunk_counts_as_much_as_its_length_lets_expect():
    # a: 10 tokens, b: 20, c: 30; 0.1 of attention for each old token
    assert prefix_overlap(prefix("ab"), np.array([2.0, 1.0]), prefix("abc")) == pytest.approx(3 / (3 + 3))


def test_a_chunk_placed_twice_is_two_chunks():
    assert 0.0 < overlap("aab", "ab") < 1.0
    assert order_penalty("aba", "aab") == pytest.approx(1 / 3)


@pytest.mark.parametrize("inter", [[1.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]])
def test_attention_that_cannot_be_is_refused(inter):
    with pytest.raises(InvalidInput, match="inter="):
        prefix_overlap(prefix("ab"), np.array(inter), prefix("a"))
