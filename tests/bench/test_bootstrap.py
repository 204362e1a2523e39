import numpy as np
import pytest

from cachecraft_rag.bench.quality.bootstrap import paired_bootstrap


def first(means):
    return means[:, 0]


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(1).normal(5.0, 2.0, size=(400, 1))
    low, high = paired_bootstrap(values, first)
    error = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - error, abs=0.05)
    assert high == pytest.approx(values.mean() + error, abs=0.05)


def test_the_same_questions_are_drawn_for_both_sides():
    values = np.random.default_rng(2).random((50, 1))
    columns = np.hstack([values, values + 0.125])
    low, high = paired_bootstrap(columns, lambda means: means[:, 1] - means[:, 0])
    assert low == pytest.approx(0.125)
    assert high == pytest.approx(0.125)


def test_it_is_the_same_each_time():
    values = np.random.default_rng(3).random((30, 2))
    assert paired_bootstrap(values, first) == paired_bootstrap(values, first)
    assert paired_bootstrap(values, first) != paired_bootstrap(values, first, seed=1)


def test_samples_without_a_value_are_left_out():
    values = np.array([[0.0], [1.0], [1.0], [1.0]])
    low, _ = paired_bootstrap(values, lambda means: np.where(means[:, 0] > 0.5, means[:, 0], np.nan))
    assert low > 0.5


def test_no_interval_where_most_samples_have_no_value():
    assert paired_bootstrap(np.ones((5, 1)), lambda means: np.full(len(means), np.nan)) is None
