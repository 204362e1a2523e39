import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.reuse.runs import first_rows, positions_to_runs

POSITIONS = st.sets(st.integers(0, 200), max_size=80).map(lambda chosen: np.array(sorted(chosen), dtype=np.int64))


@given(POSITIONS)
def test_runs_cover_exactly_the_positions(positions):
    runs = positions_to_runs(positions)
    assert runs.dtype == np.int64
    assert runs.shape == (len(runs), 2)
    covered = [position for start, stop in runs for position in range(start, stop)]
    assert covered == positions.tolist()


@given(POSITIONS)
def test_runs_are_as_long_as_they_can_be(positions):
    runs = positions_to_runs(positions)
    assert (runs[:, 0] < runs[:, 1]).all()
    assert (runs[1:, 0] > runs[:-1, 1]).all()


def test_no_positions_no_runs():
    assert positions_to_runs(np.empty(0, dtype=np.int64)).shape == (0, 2)


@given(POSITIONS, st.integers(1, 100), st.integers(1, 40))
def test_first_rows_keeps_both_limits_and_takes_as_many_as_it_can(positions, max_rows, max_runs):
    rows = first_rows(positions, max_rows, max_runs)
    assert rows <= max_rows
    assert len(positions_to_runs(positions[:rows])) <= max_runs
    if rows < positions.size:
        one_more = len(positions_to_runs(positions[: rows + 1]))
        assert rows + 1 > max_rows or one_more > max_runs
    assert rows >= 1 or positions.size == 0


@pytest.mark.parametrize(("max_rows", "max_runs", "expected"), [(0, 5, 0), (3, 1, 3), (9, 1, 3), (4, 2, 4), (9, 2, 5)])
def test_first_rows_by_hand(max_rows, max_runs, expected):
    assert first_rows(np.array([4, 5, 6, 10, 11, 20]), max_rows, max_runs) == expected


@given(POSITIONS, st.integers(1, 7), st.integers(1, 3))
def test_taking_slice_after_slice_ends_and_loses_nothing(positions, max_rows, max_runs):
    taken, cursor = [], 0
    while cursor < positions.size:
        rows = first_rows(positions[cursor:], max_rows, max_runs)
        taken += positions[cursor : cursor + rows].tolist()
        cursor += rows
    assert taken == positions.tolist()
