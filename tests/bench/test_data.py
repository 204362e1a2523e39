import json
from dataclasses import replace

import pytest

from cachecraft_rag.bench.quality.data import Passage, Question, load_questions, save_questions, shuffled
from cachecraft_rag.errors import InvalidInput


def question(number, passages=6):
    return Question(f"Who is {number}?", ("gold",), tuple(Passage(f"T{n}", f"text {n}") for n in range(passages)))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "data.jsonl"
    save_questions(path, [question(number) for number in range(5)])
    return path


def test_the_order_is_drawn_for_each_question_by_itself(file):
    all_of_them = load_questions(file)
    assert load_questions(file) == all_of_them
    assert load_questions(file, limit=2) == all_of_them[:2]
    assert len({loaded.passages for loaded in all_of_them}) > 1
    for number, loaded in enumerate(all_of_them):
        assert loaded == shuffled(question(number), 0)
        assert set(loaded.passages) == set(question(number).passages)
    assert load_questions(file, seed=1) != all_of_them


def test_the_digest_stays_what_records_are_found_by():
    asked = Question("Wer?", ("Grün",), (Passage("T", "text"), Passage("", "more\u2028text")))
    assert asked.digest == "6b2b5cb2fc2761e5095193eebb7a5bd36227164b707284008d7fb89bf3b22c04"


def test_the_digest_knows_the_order():
    one = question(1)
    assert one.digest == Question.from_dict(json.loads(json.dumps(one.to_dict()))).digest
    assert one.digest != shuffled(one, 0).digest


def test_a_title_stands_in_front_of_its_text():
    assert Passage("Title", "text").chunk.text == "Title\ntext"
    assert Passage("", "text").chunk.text == "text"


def test_a_passage_that_is_there_twice_is_kept_once():
    fields = question(1, 2).to_dict()
    fields["passages"] = [*fields["passages"], {"text": "T0\ntext 0"}]
    fields["answers"] = list(fields["answers"])
    assert len(Question.from_dict(fields).passages) == 2


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"question": "q", "answers": ["a"]}',
        '{"question": "q", "answers": "a", "passages": [{"text": "t"}]}',
        '{"question": "q", "answers": [], "passages": [{"text": "t"}]}',
        '{"question": "q", "answers": ["a"], "passages": []}',
        '{"question": "q", "answers": ["a"], "passages": ["t"]}',
        '{"question": "q", "answers": ["a"], "passages": [{"title": "t"}]}',
        '{"question": "q", "answers": ["a"], "passages": [{"text": " "}]}',
    ],
)
def test_a_garbled_line_is_named(tmp_path, line):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(question(1).to_dict()) + "\n" + line + "\n")
    with pytest.raises(InvalidInput, match=r"data\.jsonl, line 2: .*must be an object with question"):
        load_questions(path)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"question": None}, "question must be a str, got NoneType"),
        ({"question": "\ud800"}, "question holds the lone surrogate"),
        ({"answers": [None]}, "an answer must be a str, got NoneType"),
        ({"answers": None}, "answers must be a list that is not empty, got None"),
        ({"passages": [{"text": None}]}, "text must be a str, got NoneType"),
        ({"passages": [{"title": None, "text": "t"}]}, "title must be a str, got NoneType"),
        ({"passages": [{"title": "t"}]}, "text is missing"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, change, what):
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps({**question(1).to_dict(), **change}))
    with pytest.raises(InvalidInput, match=rf"data\.jsonl, line 1: {what}"):
        load_questions(path)


@pytest.mark.parametrize(("encoding", "byte"), [("latin-1", "0xe9"), ("utf-16", "0xff")])
def test_a_line_in_another_encoding_is_named(tmp_path, encoding, byte):
    path = tmp_path / "data.jsonl"
    line = json.dumps(replace(question(1), question="Qui est né?").to_dict(), ensure_ascii=False)
    path.write_bytes(b"\n" + line.encode(encoding))
    with pytest.raises(InvalidInput, match=rf"data\.jsonl, line 2: byte {byte} is not UTF-8"):
        load_questions(path)


def test_blank_lines_are_passed_over_and_what_is_behind_the_limit_is_not_read(file):
    loaded = load_questions(file)
    file.write_bytes(b"\n" + file.read_bytes().replace(b"\n", b"\r\n") + b" \n\n")
    assert load_questions(file) == loaded
    file.write_bytes(file.read_bytes() + b"\xff")
    assert load_questions(file, limit=5) == loaded


def test_no_file_and_no_questions(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_questions(tmp_path / "nowhere.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InvalidInput, match="has no questions"):
        load_questions(tmp_path / "empty.jsonl")
    with pytest.raises(InvalidInput, match="has no questions"):
        load_questions(tmp_path / "empty.jsonl", limit=-1)
