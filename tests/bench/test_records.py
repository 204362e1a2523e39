import json
from dataclasses import asdict, replace

import pytest

from cachecraft_rag.bench.quality.records import Record, Records
from cachecraft_rag.bench.quality.variants import FULL, NAIVE

RECORD = Record("naïve\nanswer", (1, 2), (0.5, 0.25), (True, False), 0.1, 0.2, 2.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.records.jsonl"


def test_what_was_added_is_there_in_the_next_run(path):
    Records(path, "run").add("q1", NAIVE, RECORD)
    again = Records(path, "run")
    assert again.get("q1", NAIVE) == RECORD
    assert again.get("q1", FULL) is None
    assert again.get("q2", NAIVE) is None


def test_a_time_is_added_to_what_is_there(path):
    untimed = replace(RECORD, seconds=None, full_seconds=None)
    Records(path, "run").add("q1", NAIVE, untimed)
    again = Records(path, "run")
    assert again.get("q1", NAIVE).first_token_ratio is None
    again.add("q1", NAIVE, RECORD)
    assert Records(path, "run").get("q1", NAIVE) == RECORD
    assert RECORD.first_token_ratio == 0.1


def test_another_run_finds_nothing_and_destroys_nothing(path):
    Records(path, "run").add("q1", NAIVE, RECORD)
    other = Records(path, "another model")
    assert other.get("q1", NAIVE) is None
    other.add("q1", FULL, RECORD)
    assert Records(path, "run").get("q1", NAIVE) == RECORD


@pytest.mark.parametrize("cut", [1, 5, 50])
def test_a_line_cut_short_is_measured_again(path, cut):
    records = Records(path, "run")
    records.add("q1", NAIVE, RECORD)
    records.add("q2", NAIVE, RECORD)
    path.write_bytes(path.read_bytes()[:-cut])
    after = Records(path, "run")
    assert after.get("q1", NAIVE) == RECORD
    if cut > 1:
        assert after.get("q2", NAIVE) is None
    after.add("q3", NAIVE, RECORD)
    assert Records(path, "run").get("q3", NAIVE) == RECORD


@pytest.mark.parametrize("line", ["[]", "{}", "3", '{"run": "run", "question": "q", "variant": "v", "answer": "a"}'])
def test_a_line_of_something_else_is_passed_over(path, line):
    path.write_text(line + "\n")
    Records(path, "run").add("q1", NAIVE, RECORD)
    assert Records(path, "run").get("q1", NAIVE) == RECORD


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\r"])
def test_an_answer_may_hold_any_line_separator(path, separator):
    record = replace(RECORD, answer=f"one{separator}two")
    Records(path, "run").add("q1", NAIVE, record)
    assert Records(path, "run").get("q1", NAIVE) == record


def test_a_line_cut_inside_a_character_is_passed_over(path):
    records = Records(path, "run")
    records.add("q1", NAIVE, RECORD)
    records.add("q2", NAIVE, RECORD)
    content = path.read_bytes()
    path.write_bytes(content[: content.rindex("ï".encode()) + 1])
    after = Records(path, "run")
    assert after.get("q1", NAIVE) == RECORD
    assert after.get("q2", NAIVE) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"variant": [1]},
        {"question": None},
        {"answer": 3},
        {"token_ids": "12"},
        {"token_ids": [True]},
        {"kl": []},
        {"kl": [0.5]},
        {"kl": [0.5, float("nan")]},
        {"kl": [], "agrees": []},
        {"agrees": [1, 0]},
        {"share": None},
        {"share": "0.1"},
        {"share": True},
        {"seconds": "fast"},
        {"full_seconds": 0.0},
    ],
)
def test_a_line_of_other_types_is_passed_over(path, wrong):
    fields = {"run": "run", "question": "q1", "variant": str(NAIVE), **asdict(RECORD)}
    path.write_text(json.dumps(fields) + "\n")
    assert Records(path, "run").get("q1", NAIVE) == RECORD
    path.write_text(json.dumps({**fields, **wrong}) + "\n")
    assert Records(path, "run").get("q1", NAIVE) is None


def test_without_a_file_all_stays_in_memory():
    records = Records(None, "run")
    records.add("q1", NAIVE, RECORD)
    assert records.get("q1", NAIVE) == RECORD
