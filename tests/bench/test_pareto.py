from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.bench.quality.pareto import pareto_front

points = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12)


def beats(one, other):
    return one != other and one[0] <= other[0] and one[1] <= other[1]


@given(points)
def test_the_front_is_what_nothing_beats(found):
    front = pareto_front([cost for cost, _ in found], [loss for _, loss in found])
    assert {found[index] for index in front} == {point for point in found if not any(beats(o, point) for o in found)}
    assert len({found[index] for index in front}) == len(front)
    assert [found[index][0] for index in front] == sorted(found[index][0] for index in front)


def test_the_first_of_equal_points_is_taken():
    assert pareto_front([1, 1, 0], [1, 1, 2]) == [2, 0]
