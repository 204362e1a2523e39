import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cachecraft_rag.bench.quality.divergence import agreement, kl_divergence, log_softmax

logits = arrays(np.float32, (3, 7), elements=st.floats(-30, 30, width=32))


@given(logits, logits)
def test_never_negative_and_zero_to_itself(one, other):
    assert np.all(kl_divergence(one, other) >= 0.0)
    assert np.all(kl_divergence(one, one) == 0.0)
    assert kl_divergence(one, other).shape == (3,)


@given(logits, st.floats(-20, 20, width=32))
def test_a_constant_changes_nothing(one, shift):
    moved = (one.astype(np.float64) + shift).astype(np.float64)
    assert kl_divergence(one, moved) == pytest.approx(np.zeros(3), abs=1e-6)


@given(logits)
def test_log_softmax_sums_to_one(one):
    assert np.exp(log_softmax(one)).sum(axis=-1) == pytest.approx(np.ones(3))


def test_a_known_value():
    p, q = np.log(np.array([[0.5, 0.5]], np.float32)), np.log(np.array([[0.25, 0.75]], np.float32))
    assert kl_divergence(p, q)[0] == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3), abs=1e-6)


def test_logits_far_apart_stay_finite():
    far = np.array([[1000.0, -1000.0]], np.float32)
    assert np.isfinite(kl_divergence(far, -far)).all()


def test_agreement_takes_the_first_of_equal_logits():
    assert agreement(np.array([[1, 1, 0], [0, 2, 1]]), np.array([[2, 1, 0], [0, 1, 2]])).tolist() == [True, False]
