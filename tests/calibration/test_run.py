import json

import pytest

from cachecraft_rag.calibration.choose import choose
from cachecraft_rag.calibration.measure import Measured
from cachecraft_rag.calibration.result import CalibrationResult
from cachecraft_rag.calibration.run import _summarise, calibrate
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput

GRID = [0.1, 0.5]
MEASURED = [
    Measured(10, 100, (0.8, 1.0), (0.4, 0.0), (0.1, 0.5), (0.2, 0.6)),
    Measured(10, 100, (0.9, 1.0), (0.2, 0.0), (0.1, 0.5), (0.4, 0.8)),
    Measured(20, 130, (0.7, 0.9), (0.3, 0.3), (0.4, 0.8), ()),
]


def result(target, written_to=None):
    rows = _summarise(GRID, MEASURED)
    fields = {"model": "m", "dtype": "float32", "policy": "first", "target": target, "samples": 3, "chunks_each": 8}
    return CalibrationResult(
        **fields, context_tokens=110.0, answer_tokens=40, ratios=rows, choice=choose(rows, target),
        questions=("Who?",) * 3, written_to=written_to,
    )  # fmt: skip


def test_each_number():
    low, high = _summarise(GRID, MEASURED)
    assert (low.ratio, high.ratio) == (0.1, 0.5)
    assert (low.agreement, high.agreement) == (pytest.approx(0.8), pytest.approx(29 / 30))
    assert 0.699 < low.agreement_low < 0.8 < low.agreement_high <= 0.9
    assert (low.kl, low.share) == (pytest.approx(0.3), pytest.approx(0.2))
    assert (low.first_token_ratio, high.first_token_ratio) == (pytest.approx(0.3), pytest.approx(0.7))  # of the timed


def test_the_table_says_what_was_chosen():
    text = str(result(0.9, "/store/calibration.json"))
    assert "ratio 0.5 is the least that reaches 0.9" in text
    (marked,) = [line for line in text.splitlines() if line.endswith("<-")]
    assert marked.split()[0] == "0.5"
    assert "/store/calibration.json" in text


def test_where_none_is_good_enough_it_is_said():
    text = str(result(0.95))
    assert "no ratio reaches 0.95" in text
    assert "the mean reaches it at 0.5" in text
    assert "ratio 1 it is" in text
    assert "<-" not in text
    assert "the mean reaches" not in str(result(0.99))


def test_it_is_json():
    fields = json.loads(json.dumps(result(0.9).to_dict()))
    assert fields["choice"] == {"ratio": 0.5, "agreement": pytest.approx(29 / 30), "by_mean": 0.5}
    assert [row["ratio"] for row in fields["ratios"]] == GRID


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"policy": "none"}, "'none' does the same at every ratio"),
        ({"policy": "all"}, "'all' does the same at every ratio"),
        ({"policy": "best"}, "best"),
        ({"target": 0.0}, r"target=0\.0"),
        ({"target": 98}, "target=98"),
        ({"ratios": [0.1, 1.5]}, r"ratio 1\.5"),
        ({"ratios": [1.0]}, r"\[1\.0\]"),
        ({"chunks_each": 1}, "chunks_each=1"),
    ],
)
def test_what_makes_no_sense_is_named_before_anything_is_loaded(options, named):
    with pytest.raises(InvalidInput, match=named):
        calibrate("no/model", [Chunk("one"), Chunk("two")], **options)
