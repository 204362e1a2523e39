import json
from itertools import pairwise

import pytest

from cachecraft_rag.bench.quality.data import load_questions, save_questions
from cachecraft_rag.bench.quality.scores import normalise
from cachecraft_rag.bench.quality.sources import build
from cachecraft_rag.errors import InvalidInput


@pytest.mark.parametrize(("name", "count"), [("xquad", 240), ("2wiki", 164), ("musique", 200)])
def test_ten_passages_for_each_question(evaluation_data, tmp_path, name, count):
    questions = build(name, evaluation_data)
    assert len(questions) == count
    assert all(len(question.passages) == 10 for question in questions)
    assert build(name, evaluation_data) == questions
    save_questions(tmp_path / "data.jsonl", questions)
    for loaded, question in zip(load_questions(tmp_path / "data.jsonl"), questions, strict=True):
        assert set(loaded.passages) == set(question.passages)


def test_xquad_answers_stand_in_the_passages_of_the_article(evaluation_data):
    questions = build("xquad", evaluation_data)
    for question in questions:
        own = " ".join(passage.text for passage in question.passages[:5])
        assert any(answer in own for answer in question.answers)
        assert len(set(question.passages)) == 10
    groups = [questions[first : first + 5] for first in range(0, len(questions), 5)]
    assert all(len({question.passages for question in group}) == 1 for group in groups)
    for group, following in pairwise(groups):
        assert group[0].passages[5:] == following[0].passages[:5]


def test_musique_begins_with_the_supporting_passages(evaluation_data):
    questions = build("musique", evaluation_data)
    found = sum(
        any(
            normalise(answer) in normalise(passage.text) for answer in question.answers for passage in question.passages
        )
        for question in questions
    )
    assert found > 190


def test_an_unknown_set_and_an_empty_folder(tmp_path):
    with pytest.raises(InvalidInput, match="choose one of: xquad, 2wiki, musique"):
        build("squad", tmp_path)
    with pytest.raises(InvalidInput, match=r"2wiki_dev164\.jsonl cannot be read"):
        build("2wiki", tmp_path)


MULTI_HOP = {
    "question": "Who?",
    "answers": ["A"],
    "passages": [{"title": "T", "text": "one\u2028line"}, {"title": "U", "text": "text"}],
    "supporting": [1],
}


def write(path, *rows):
    lines = (row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows)
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def test_a_text_may_hold_a_line_separator(tmp_path):
    write(tmp_path / "musique_dev200.jsonl", MULTI_HOP)
    (question,) = build("musique", tmp_path)
    assert [passage.text for passage in question.passages] == ["text", "one\u2028line"]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        (b"{", "this is not JSON"),
        (b"[]", "this is no object"),
        ("é".encode("latin-1"), "byte 0xe9 is not UTF-8"),
        ({**MULTI_HOP, "question": None}, "question must be a str, got NoneType"),
        ({key: MULTI_HOP[key] for key in ("question", "answers", "supporting")}, "passages must be a list"),
        *(({**MULTI_HOP, "supporting": wrong}, "supporting must be a list") for wrong in ([2], [-1], [0.0], None)),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path, row, what):
    write(tmp_path / "2wiki_dev164.jsonl", MULTI_HOP, row)
    with pytest.raises(InvalidInput, match=rf"2wiki_dev164\.jsonl, line 2: {what}.*; a line must be an object with"):
        build("2wiki", tmp_path)


@pytest.mark.parametrize(
    ("passage", "question", "what"),
    [
        ({"id": "p"}, {}, r"xquad_passages\.jsonl, line 1: article is missing"),
        ({"id": "p", "article": "a", "text": "t"}, {"passage": "q"}, r"xquad_questions\.jsonl, line 1: passage 'q' is"),
        ({"id": "p", "article": "a", "text": "t"}, {"passage": "p"}, r"xquad_questions\.jsonl, line 1: question is"),
    ],
)
def test_a_line_of_xquad_that_cannot_be_used_is_named(tmp_path, passage, question, what):
    write(tmp_path / "xquad_passages.jsonl", passage)
    write(tmp_path / "xquad_questions.jsonl", question)
    with pytest.raises(InvalidInput, match=what):
        build("xquad", tmp_path)


def test_a_source_without_lines_is_refused(tmp_path):
    write(tmp_path / "musique_dev200.jsonl", b"")
    with pytest.raises(InvalidInput, match=r"musique_dev200\.jsonl holds no lines"):
        build("musique", tmp_path)
