from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.bench.quality.exact_prefix import reorder_to_prefixes

streams = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, unique=True), max_size=8)


@given(streams)
def test_every_prompt_keeps_its_chunks_and_begins_as_its_donor(orders):
    done = reorder_to_prefixes(orders)
    for number, (order, reordered) in enumerate(zip(orders, done, strict=True)):
        assert sorted(reordered.order) == sorted(order)
        rest = list(reordered.order[reordered.shared :])
        assert rest == [chunk for chunk in order if chunk in rest]
        if reordered.donor is None:
            assert reordered.shared == 0
        else:
            assert reordered.donor < number
            assert reordered.order[: reordered.shared] == done[reordered.donor].order[: reordered.shared]


@given(streams)
def test_no_earlier_prompt_shares_a_longer_beginning(orders):
    done = reorder_to_prefixes(orders)
    for number, reordered in enumerate(done):
        for earlier in done[:number]:
            longer = earlier.order[: reordered.shared + 1]
            assert len(longer) <= reordered.shared or not set(longer) <= set(reordered.order)


def test_the_same_chunks_again_come_in_the_order_they_had():
    first, second, third = reorder_to_prefixes(["cab", "abc", "bxc"])
    assert first.order == second.order == ("c", "a", "b")
    assert (second.donor, second.shared) == (0, 3)
    assert (third.order, third.shared) == (("c", "b", "x"), 1)
