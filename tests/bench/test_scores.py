import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.bench.quality.scores import exact_match, f1, gap_recovered, normalise

words = st.lists(st.sampled_from(["The", "cat", "a", "sat,", "mat.", "308"])).map(" ".join)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat, an  apple.", "cat apple"),
        ("anthem theory a-team", "anthem theory ateam"),
        ("U.S. $1,000", "us 1000"),
        ("Ängström’s", "ängström’s"),
        ("the", ""),
    ],
)
def test_normalise_as_squad_does(text, expected):
    assert normalise(text) == expected


@given(words)
def test_normalising_twice_changes_nothing(text):
    assert normalise(normalise(text)) == normalise(text)


@given(words, words)
def test_f1_is_a_symmetric_share(one, other):
    assert 0.0 <= f1(one, [other]) <= 1.0
    assert f1(one, [other]) == pytest.approx(f1(other, [one]))
    assert exact_match(one, [other]) <= f1(one, [other])
    assert f1(one, [one]) == exact_match(one, [one]) == 1.0


def test_f1_counts_words_as_often_as_they_occur():
    assert f1("red red blue", ["red"]) == pytest.approx(2 * (1 / 3) * 1 / (1 / 3 + 1))
    assert f1("in Paris, France", ["Paris"]) == pytest.approx(0.5)


def test_the_best_gold_answer_counts():
    assert f1("308 points", ["none", "308"]) == pytest.approx(2 / 3)
    assert exact_match("308.", ["points", "308"]) == 1.0
    assert exact_match("308 points", ["points", "308"]) == 0.0


def test_an_empty_answer():
    assert f1("", ["308"]) == 0.0
    assert f1("the", ["a"]) == 1.0


@pytest.mark.parametrize(
    ("score", "without", "full", "expected"),
    [(0.6, 0.2, 0.6, 1.0), (0.2, 0.2, 0.6, 0.0), (0.4, 0.2, 0.6, 0.5), (0.7, 0.2, 0.6, 1.25), (0.5, 0.4, 0.4, None)],
)
def test_gap_recovered(score, without, full, expected):
    assert gap_recovered(score, without, full) == (None if expected is None else pytest.approx(expected))
