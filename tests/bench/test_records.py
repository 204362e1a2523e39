from dataclasses import replace

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


def test_without_a_file_all_stays_in_memory():
    records = Records(None, "run")
    records.add("q1", NAIVE, RECORD)
    assert records.get("q1", NAIVE) == RECORD
