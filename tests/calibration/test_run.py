import errno
import json
import os
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from cachecraft_rag.calibration import run
from cachecraft_rag.calibration.choose import choose
from cachecraft_rag.calibration.measure import Measured
from cachecraft_rag.calibration.result import CalibrationNotKept, CalibrationResult
from cachecraft_rag.calibration.run import _summarise, calibrate
from cachecraft_rag.calibration.setting import FILE
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.cli import app
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


def test_where_none_is_good_enough_it_is_said_with_the_way_out():
    text = str(result(0.95, "/store/calibration.json"))
    assert "nothing below ratio 1 meets the target: no ratio reaches 0.95" in text
    assert "the mean reaches it at 0.5" in text
    assert "Ratio 1 it is, which is exact and reuses nothing" in text
    assert "The best, ratio 0.5, agrees in 0.967 [0.900, 1.000]: a --target of at most 0.9 would" in text
    assert "reuse nothing from now on (/store/calibration.json)" in text
    assert "<-" not in text
    assert "the mean reaches" not in str(result(0.99))
    assert choose(result(0.95).ratios, 0.9).ratio == 0.5


def test_questions_that_were_left_out_are_said():
    assert "2 more questions share no word" in str(replace(result(0.9), skipped_questions=2))
    assert "share no word" not in str(result(0.9))


def test_it_is_json():
    fields = json.loads(json.dumps(result(0.9).to_dict()))
    assert fields["choice"] == {"ratio": 0.5, "agreement": pytest.approx(29 / 30), "by_mean": 0.5}
    assert [row["ratio"] for row in fields["ratios"]] == GRID
    assert fields["target_met_below_1"] is True
    unmet = result(0.95).to_dict()
    assert unmet["target_met_below_1"] is False
    assert unmet["conclusion"] in str(result(0.95))


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
        ({"read_only": True}, "read_only=True"),
        ({"samples": 0}, "samples=0 is not enough: give at least 8"),
        ({"samples": 7, "questions": ["one?"]}, "samples=7"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"policy": "cachecraft"}, "'cachecraft' reuses what earlier prompts left.*'blend'"),
        ({"policy": "blend-variants"}, "'blend-variants' reuses what earlier prompts left"),
        ({"stand_in": "text"}, "stand_in='text'"),
        ({}, "2 different chunks make 2 different samples"),
        ({"questions": ["one?"]}, "is 1, too few"),
    ],
)
def test_what_makes_no_sense_is_named_before_anything_is_loaded(options, named):
    with pytest.raises(InvalidInput, match=named):
        calibrate("no/model", [Chunk("one"), Chunk("two")], **options)


@pytest.fixture
def no_engine(monkeypatch, tmp_path):
    """Everything but the engine and what it measures; the options it would be started with."""
    given = {}

    @contextmanager
    def start(model, **options):
        given.update(options)
        folder = tmp_path / "store" / ("a" * 64)
        kept = options["store_dir"] is not None
        yield SimpleNamespace(engine=SimpleNamespace(dtype="float32", model_store_dir=folder if kept else None))

    monkeypatch.setattr(run, "start_forced_engine", start)
    monkeypatch.setattr(run, "context_for", lambda *_: 4096)
    monkeypatch.setattr(run, "_ask", lambda _, drawn, __: [replace(sample, question="?") for sample in drawn])
    one = Measured(3, 100, (0.95,), (0.0,), (0.1,), (0.2,))
    monkeypatch.setattr(run, "_measure_all", lambda _, asked, *__: [one for _ in asked])
    return given


CHUNKS = [Chunk(f"text {number}") for number in range(9)]
QUESTIONS = [f"What is {number}?" for number in range(9)]


def disk_full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_result_outlives_a_store_that_cannot_be_written(no_engine, monkeypatch, tmp_path):
    options = {"target": 0.9, "ratios": [0.05], "store_dir": tmp_path / "store", "progress": False}
    kept = calibrate("m", CHUNKS, questions=[*QUESTIONS, "zzz?"], **options)
    assert kept.written_to == str(tmp_path / "store" / ("a" * 64) / FILE)
    assert (kept.samples, kept.skipped_questions, no_engine["max_model_len"]) == (9, 1, 4096)
    monkeypatch.setattr(os, "posix_fallocate", disk_full)
    with pytest.raises(CalibrationNotKept, match=r"No space left.*policy='blend' and recompute_ratio=0\.05") as error:
        calibrate("m", CHUNKS, questions=QUESTIONS, **options)
    assert str(tmp_path / "store") in str(error.value)
    assert (error.value.result.choice.ratio, error.value.result.written_to) == (0.05, None)


def cli(tmp_path, *more):
    lines = tmp_path / "docs.jsonl"
    lines.write_text("".join(json.dumps({"text": chunk.text}) + "\n" for chunk in CHUNKS))
    given = ["--jsonl", lines, "--model", "m", "--dtype", "float32", "--ratios", "0.05", "--target", 0.9, *more]
    return CliRunner().invoke(app, ["calibrate", *map(str, given)])


def test_the_command_prints_and_writes_it_before_the_error(no_engine, monkeypatch, tmp_path):
    monkeypatch.setattr(os, "posix_fallocate", disk_full)
    done = cli(tmp_path, "--store-dir", tmp_path / "store", "--json", tmp_path / "out.json")
    assert done.exit_code == 2
    assert "ratio 0.05 is the least that reaches 0.9" in done.stdout
    assert json.loads((tmp_path / "out.json").read_text())["choice"]["ratio"] == 0.05
    assert "error: the choice could not be written into" in done.stderr
    no_folder = cli(tmp_path, "--store-dir", tmp_path / "store", "--json", "/dev/full")
    assert no_folder.exit_code == 2
    assert "ratio 0.05 is the least" in no_folder.stdout
    assert "/dev/full cannot be written either" in no_folder.stderr


def test_the_command_takes_what_the_choice_is_looked_up_by(no_engine, tmp_path):
    assert cli(tmp_path).exit_code == 0
    assert not {"default_system", "chat_template_kwargs", "stand_in"} & set(no_engine)
    more = ["--default-system", "Be brief.", "--chat-template-kwargs", '{"enable_thinking": false}', "--no-stand-in"]
    assert cli(tmp_path, *more).exit_code == 0
    assert (no_engine["default_system"], no_engine["stand_in"]) == ("Be brief.", ())
    assert no_engine["chat_template_kwargs"] == {"enable_thinking": False}
    for text in ("{", "3"):
        refused = cli(tmp_path, "--chat-template-kwargs", text)
        assert refused.exit_code == 2
        assert "enable_thinking" in refused.stderr
