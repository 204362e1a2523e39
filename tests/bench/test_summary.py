import json
import math
from dataclasses import replace

import pytest

from cachecraft_rag.bench.quality.data import Passage, Question
from cachecraft_rag.bench.quality.records import Record
from cachecraft_rag.bench.quality.result import QualityResult
from cachecraft_rag.bench.quality.summary import share_full_fails, summarise
from cachecraft_rag.bench.quality.variants import FULL, NAIVE, NO_CONTEXT, Variant
from cachecraft_rag.errors import InvalidInput

FIRST = Variant("first", 0.15)
QUESTIONS = [Question(f"q{number}", ("right",), (Passage("", "text"),)) for number in range(4)]


def record(answer, kl=0.0, seconds=1.0, share=1.0):
    return Record(answer, (1, 2), (kl, kl), (kl == 0.0, True), share, seconds, 2.0)


ANSWERS = [
    {FULL: record("right", seconds=2.0), NO_CONTEXT: record("no", 1.0), FIRST: record("right", 0.0, 0.5, 0.2)},
    {FULL: record("Right!", seconds=2.0), NO_CONTEXT: record("no", 1.0), FIRST: record("right", 0.2, 0.4, 0.1)},
    {FULL: record("right", seconds=2.0), NO_CONTEXT: record("right", 1.0), FIRST: record("right", 0.4, 0.5, 0.1)},
    {FULL: record("wrong", seconds=2.0), NO_CONTEXT: record("no", 1.0), FIRST: record("no", 0.2, 9.0, 0.2)},
]
for answer in ANSWERS:
    answer[NAIVE] = record("right", 0.5, 0.1, 0.0)


@pytest.fixture
def result():
    return QualityResult(
        model="m",
        dtype="float32",
        data="set",
        questions=4,
        asked=10,
        max_tokens=16,
        min_run=1,
        seed=0,
        context_tokens=1234.5,
        full_fails=share_full_fails(QUESTIONS, ANSWERS),
        variants=summarise(QUESTIONS, ANSWERS),
        machine={"cores": 2},
    )


def test_each_number(result):
    full, without, first, naive = result.variants
    assert (full.label, without.label, first.label) == ("full prefill", "no context", "first 0.15")
    assert (full.f1.value, without.f1.value, first.f1.value) == (0.75, 0.25, 0.75)
    assert (full.kl.value, first.kl.value) == (0.0, pytest.approx(0.2))
    assert (full.kl_of_naive.value, first.kl_of_naive.value) == (0.0, pytest.approx(0.4))
    assert (naive.kl_of_naive.low, naive.kl_of_naive.high) == (1.0, 1.0)
    assert first.agreement.value == pytest.approx(5 / 8)
    assert first.same_answer.value == 0.5
    assert first.of_full.value == first.gap_recovered.value == 1.0
    assert without.gap_recovered.value == 0.0
    assert first.share == pytest.approx(0.15)
    assert first.first_token_ratio == pytest.approx(0.25)  # the median, whatever the one outlier is
    assert result.full_fails == 0.25


def test_the_ttft_is_that_of_the_questions_which_have_one():
    untimed = [{name: replace(r, seconds=None, full_seconds=None) for name, r in one.items()} for one in ANSWERS]
    assert {v.first_token_ratio for v in summarise(QUESTIONS, untimed)} == {None}
    first = summarise(QUESTIONS, [*untimed[:2], *ANSWERS[2:3], *untimed[3:]])[2]
    assert (first.first_token_ratio, first.timed) == (0.25, 1)


def test_intervals_hold_the_value(result):
    for variant in result.variants:
        for estimate in (variant.f1, variant.kl, variant.same_answer, variant.agreement, variant.of_full):
            assert estimate.low <= estimate.value <= estimate.high
    full = result.variants[0]
    assert (full.of_full.low, full.of_full.high) == (1.0, 1.0)


def test_no_gap_where_full_prefill_gains_nothing():
    answers = [{FULL: record("no"), NO_CONTEXT: record("right", 1.0), FIRST: record("right", 0.5), NAIVE: record("no")}]
    for variant in summarise(QUESTIONS[:1], answers):
        assert variant.gap_recovered is None
        assert variant.of_full is None
        assert variant.kl_of_naive is None
    assert share_full_fails(QUESTIONS[:1], answers) == 1.0


def test_json_and_back(result):
    again = QualityResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again == result
    assert str(again) == str(result)
    assert "4 of 10 questions, m in float32, chunks computed alone; " in str(result)
    assert "alone" not in str(replace(result, alone=False))
    assert "TTFT of 4 questions" in str(result)
    assert "kept as fp8" in str(replace(result, compress="fp8"))
    assert all(math.isfinite(variant.share) for variant in again.variants)


@pytest.mark.parametrize("fields", [{}, {"variants": [{}]}, [], {"variants": [], "more": 1}])
def test_json_of_something_else_is_refused(fields):
    with pytest.raises(InvalidInput, match="not a result of the quality benchmark"):
        QualityResult.from_dict(fields)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"asked": "4"}, "asked: input should be a valid integer, got '4'"),
        ({"asked": 4.5}, "asked: input should be a valid integer, got 4.5"),
        ({"context_tokens": None}, "context_tokens: input should be a valid number, got None"),
        ({"full_fails": float("nan")}, "full_fails: input should be a finite number, got nan"),
        ({"alone": 1}, "alone: input should be a valid boolean, got 1"),
        ({"compress": 8}, "compress: input should be a valid string, got 8"),
        ({"machine": []}, r"machine: input should be an object, got \[\]"),
        ({"question_ids": [1]}, r"question_ids\.0: input should be a valid string, got 1"),
        ({"variants": [3]}, r"variants\.0: input should be an object, got 3"),
        ({"question_ids": ["a"]}, r"variants\.0\.f1_each has 4 numbers for 1 question_ids"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_named(result, tmp_path, change, what):
    file = tmp_path / "x.json"
    file.write_text(json.dumps({**result.to_dict(), **change}))
    with pytest.raises(InvalidInput, match=rf"x\.json: this is not a result .*\({what}\): give a file"):
        QualityResult.read(file)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"name": 3}, "name: input should be a valid string, got 3"),
        ({"ratio": "0.15"}, "ratio: input should be a valid number, got '0.15'"),
        ({"share": True}, "share: input should be a valid number, got True"),
        ({"kl": None}, "kl: input should be an object, got None"),
        ({"kl": {"value": None}}, r"kl\.value: input should be a valid number, got None"),
        ({"kl": {}}, r"kl\.value: field required"),
        ({"kl": {"value": 1.0, "more": 2}}, r"kl\.more: unexpected keyword argument, got 2"),
        ({"of_full": {"value": 1.0, "low": "x"}}, r"of_full\.low: input should be a valid number, got 'x'"),
        ({"kl_each": [0.1, None]}, r"kl_each\.1: input should be a valid number, got None"),
        ({"timed": None}, "timed: input should be a valid integer, got None"),
    ],
)
def test_a_field_of_a_way_is_named_too(result, change, what):
    fields = result.to_dict()
    fields["variants"] = [*fields["variants"][:2], {**fields["variants"][2], **change}]
    with pytest.raises(InvalidInput, match=rf"variants\.2\.{what}"):
        QualityResult.from_dict(fields)
