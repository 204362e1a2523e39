import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.store.changes import DiskReport
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.ranks import Agreement, RankStores, rank_model

FINGERPRINT = "f" * 64


def test_each_rank_of_each_number_of_ranks_has_a_folder_and_a_single_one_the_models():
    assert rank_model(FINGERPRINT, 0, 1) == FINGERPRINT
    names = {rank_model(FINGERPRINT, rank, ranks) for ranks in (1, 2, 3) for rank in range(ranks)}
    assert len(names) == 6
    assert all(len(name) == 64 and set(name) <= set("0123456789abcdef") for name in names)


@pytest.fixture
def stores(store, put):
    """Two ranks: "a" is on both, "b" on the first, "c" on the second."""
    ranks = [DiskStore(store.directory, model) for model in ("1" * 64, "2" * 64)]
    for rank, keys in zip(ranks, ("ab", "ac"), strict=True):
        for key in keys:
            put(rank, key, model=rank.model)
    return RankStores(ranks)


def test_an_entry_is_there_where_every_rank_has_it(stores):
    assert [stores.has(key) for key in "abcd"] == [True, False, False, False]
    assert [header.key for header in stores.scan()] == ["a"]
    assert len(stores) == 2


@pytest.mark.parametrize(("done", "failed"), [("loaded", "unreadable"), ("written", "unwritten")])
def test_what_failed_anywhere_has_failed_and_nothing_is_said_before_all_have_spoken(done, failed):
    agreement = Agreement(3)
    assert agreement.add({0: DiskReport(**{done: [1, 2]}), 2: DiskReport(**{failed: {1: "torn"}})}) == DiskReport()
    both = agreement.add({1: DiskReport(**{done: [1]}), 2: DiskReport(**{done: [2]})})
    assert both == DiskReport(**{failed: {1: "torn"}})
    assert agreement.add({1: DiskReport(**{done: [2]})}) == DiskReport(**{done: [2]})


def test_changes_are_made_once_the_slowest_has_made_them():
    agreement = Agreement(2)
    assert agreement.add({0: DiskReport(changed=3, removed=["a"])}) == DiskReport()
    assert agreement.add({1: DiskReport(changed=2)}).changed == 2
    assert agreement.add({1: DiskReport(changed=2, removed=["a"])}) == DiskReport(changed=1, removed=["a"])
    assert agreement.add({0: DiskReport(changed=1)}).changed == 1


def test_what_one_rank_dropped_is_dropped():
    assert Agreement(2).add({1: DiskReport(dropped=["a"], used_bytes=7)}) == DiskReport(dropped=["a"], used_bytes=7)


def test_a_single_rank_agrees_with_itself():
    report = DiskReport([1], {2: "torn"}, [3], {4: "full"}, ["a"], ["b"], 3, 9)
    assert Agreement(1).add({0: report}) == report


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=6), st.integers(0, 10**6))
def test_whatever_the_order_every_handle_is_settled_once(outcomes, seed):
    """`outcomes`: of each handle, how it went on either rank; the ranks' news come in any order and any portions."""
    news = [(rank, handle) for handle in range(len(outcomes)) for rank in (0, 1)]
    shuffled = random.Random(seed)
    shuffled.shuffle(news)
    agreement, loaded, unreadable = Agreement(2), [], {}
    while news:
        reports = {0: DiskReport(), 1: DiskReport()}
        for rank, handle in [news.pop() for _ in range(shuffled.randint(1, len(news)))]:
            if outcomes[handle][rank]:
                reports[rank].loaded.append(handle)
            else:
                reports[rank].unreadable[handle] = f"of rank {rank}"
        together = agreement.add(reports)
        loaded += together.loaded
        assert not together.unreadable.keys() & unreadable.keys()
        unreadable |= together.unreadable
    assert sorted(loaded) == [handle for handle, (one, other) in enumerate(outcomes) if one and other]
    assert sorted(unreadable) == [handle for handle, (one, other) in enumerate(outcomes) if not (one and other)]
