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
