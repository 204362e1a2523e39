from dataclasses import dataclass

import pytest

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.store.eviction import FrequencyReuse, LeastRecentlyUsed, get_eviction


@dataclass
class Item:
    rank: float = 0.0
    frequency: float = 0.0


def test_the_least_recently_used_ranks_lowest():
    policy = LeastRecentlyUsed()
    a, b = Item(), Item()
    policy.used(a, 1.0)
    policy.used(b, 1.0)
    policy.used(a, 0.0)
    assert b.rank < a.rank


def test_a_use_counts_more_the_less_had_to_be_recomputed():
    policy = FrequencyReuse(floor=0.1)
    item = Item()
    policy.used(item, 0.5)
    assert item.frequency == 2.0
    policy.used(item, 0.0)
    assert item.frequency == 12.0
    assert item.rank == 12.0


def test_what_was_hot_once_does_not_stay_for_ever():
    policy = FrequencyReuse()
    old = Item()
    for _ in range(5):
        policy.used(old, 0.2)
    for turn in range(100):
        newcomer = Item()
        policy.used(newcomer, 1.0)
        if newcomer.rank > old.rank:
            assert turn > 5
            break
        policy.evicted(newcomer)
    else:
        pytest.fail("no newcomer ever outranked it")


def test_an_unknown_policy_names_those_there_are():
    assert get_eviction("score").name == "score"
    with pytest.raises(InvalidInput, match="lru, score"):
        get_eviction("best")
