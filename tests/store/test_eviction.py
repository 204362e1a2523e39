import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.store.eviction import FrequencyReuse, LeastRecentlyUsed, eviction_gain, get_eviction, lowest_ranked


@dataclass
class Item:
    rank: float = -math.inf
    nbytes: int = 10
    namespace: str = "one"


def test_the_least_recently_used_ranks_lowest():
    policy = LeastRecentlyUsed()
    a, b = Item(), Item()
    policy.used(a, 1.0, 2)
    policy.used(b, 1.0, 2)
    policy.used(a, 0.0, 2)
    assert b.rank < a.rank


def test_a_use_counts_more_the_less_had_to_be_recomputed():
    policy = FrequencyReuse(floor=0.1)
    ranks = []
    for share in (1.0, 0.5, 0.1, 0.0):
        item = Item()
        policy.used(item, share, 10**9)
        ranks.append(item.rank)
    assert ranks == pytest.approx([0.0, 1.0, math.log2(10), math.log2(10)], abs=1e-6)


def test_scores_add_up_and_halve_after_as_many_uses_as_there_are_entries():
    policy = FrequencyReuse(floor=0.1)
    entries, item, other = 50, Item(), Item()
    policy.used(item, 0.5, entries)
    for _ in range(entries - 1):
        policy.used(other, 1.0, entries)
    policy.used(item, 0.25, entries)
    assert item.rank - policy._half_lives == pytest.approx(math.log2(2 / 2 + 4))


def test_what_was_hot_once_does_not_stay_for_ever_but_outlives_what_never_was():
    policy = FrequencyReuse()
    hot = Item()
    for _ in range(5):
        policy.used(hot, 0.2, 10)
    newcomers = [Item() for _ in range(100)]
    for newcomer in newcomers:
        policy.used(newcomer, 1.0, 10)
    above = [newcomer.rank > hot.rank for newcomer in newcomers]
    assert not any(above[:10])
    assert all(above[60:])


def test_ten_thousand_half_lives_later_ranks_are_still_numbers():
    policy = FrequencyReuse()
    item = Item()
    policy.used(item, 0.1, 1)
    for _ in range(10_000):
        policy.used(Item(), 1.0, 1)
    policy.used(item, 0.1, 1)
    assert math.isfinite(item.rank)


def test_an_unknown_policy_names_those_there_are():
    assert get_eviction("score").name == "score"
    with pytest.raises(InvalidInput, match="lru, score"):
        get_eviction("best")


def test_the_lowest_rank_leaves_first_equals_in_their_order_and_no_more_than_needed():
    items = [Item(3.0), Item(1.0), Item(2.0), Item(1.0, 5)]
    assert lowest_ranked(items, 11) == [items[1], items[3]]
    assert lowest_ranked(items, 16) == [items[1], items[3], items[2]]
    assert lowest_ranked(items, 1000) == [items[1], items[3], items[2], items[0]]
    assert lowest_ranked(items, 0) == []


@given(st.floats(0, 1), st.floats(0.001, 1))
def test_the_gain_of_a_use_is_bounded_and_falls_with_the_overhead(overhead, floor):
    assert 1.0 <= eviction_gain(overhead, floor) <= 1.0 / floor
    assert eviction_gain(overhead, floor) <= eviction_gain(overhead / 2, floor)
