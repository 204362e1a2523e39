import json

import pytest

from cachecraft_rag.demo.defaults import examples_folder, handbook_folder
from cachecraft_rag.demo.documents import load_folder
from cachecraft_rag.demo.questions import Question, load_questions
from cachecraft_rag.errors import InvalidInput


def test_an_answer_is_right_if_it_holds_what_is_expected():
    question = Question("How much?", ("30 percent", "30%"))
    assert question.is_right("It is shipped at 30 Percent.")
    assert question.is_right("30\n percent")
    assert question.is_right("at 30%")
    assert question.is_right("30 volts") is False
    assert Question("How much?").is_right("30 volts") is None


def test_questions_are_read_from_a_file(tmp_path):
    path = tmp_path / "questions.json"
    path.write_text(json.dumps([{"question": "How much?", "expects": ["3"]}, {"question": "Why?"}]))
    assert load_questions(path) == [Question("How much?", ("3",)), Question("Why?")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "is not JSON"),
        ("[]", "no list of questions"),
        ('{"question": "Why?"}', "no list of questions"),
        ('["Why?"]', "'Why\\?' is not like"),
        ('[{"question": "Why?", "expects": "3"}]', "is not like"),
        ('[{"question": " "}]', "is empty"),
    ],
)
def test_a_wrong_file_is_an_error_that_shows_the_line(tmp_path, content, message):
    path = tmp_path / "questions.json"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        load_questions(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_questions(tmp_path / "absent.json")


def test_the_handbook_holds_the_answers_to_its_questions():
    texts = [" ".join(chunk.text.split()) for chunk in load_folder(handbook_folder())]
    questions = load_questions(examples_folder() / "handbook_questions.json")
    assert len(questions) >= 5
    for question in questions:
        assert any(question.is_right(text) for text in texts), question
