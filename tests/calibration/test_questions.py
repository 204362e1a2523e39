import pytest

from cachecraft_rag.calibration.questions import ask_of_each, load_questions, read_question
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput


@pytest.mark.parametrize(
    ("written", "question"),
    [
        ("Who keeps bees?", "Who keeps bees?"),
        ('\n "What is it?" That is asked here.', "What is it?"),
        ("Question: How deep is it?\nAnswer: 3 m", "How deep is it?"),
        ("1. **Where does it swim?**", "Where does it swim?"),
        ("- the question: Why", "Why"),
        ("Tell the depth", "Tell the depth"),
        ("2) Where?", "Where?"),
        ("Question 3: Where?", "Where?"),
        ("- 5 apples cost what?", "5 apples cost what?"),
        ("1950 saw which purchase?", "1950 saw which purchase?"),
        ("3D printing uses what?", "3D printing uses what?"),
        ("3.5 million people did what?", "3.5 million people did what?"),
        ("24-hour service is offered where?", "24-hour service is offered where?"),
        ("Questions like which are asked?", "Questions like which are asked?"),
        ("The questionnaire asks what?", "The questionnaire asks what?"),
        ("图书馆何时成立？在一八七一年。", "图书馆何时成立？"),
        (". . . ?", None),
        ("\n ?! \n", None),
        ("", None),
    ],
)
def test_what_the_model_wrote_is_read(written, question):
    assert read_question(written) == question


def test_each_chunk_is_asked_about_something_of_its_own():
    chunks = [
        Chunk(f"{name} lives here and keeps a great many bees in the sea") for name in ("Greta", "Hugo", "Ida", "Jo")
    ]
    written = dict(
        zip([chunk.id for chunk in chunks], ["What is it?", "Who is Hugo?", "What is it?", None], strict=True)
    )
    assert list(ask_of_each(chunks, written).values()) == [
        'What is said about "Greta lives here and keeps a great many"?',
        "Who is Hugo?",
        'What is said about "Ida lives here and keeps a great many"?',
        'What is said about "Jo lives here and keeps a great many"?',
    ]


def test_a_text_without_spaces_is_not_quoted_in_full():
    chunk = Chunk("养蜂人格蕾塔住在海边，" * 60)
    (question,) = ask_of_each([chunk], {}).values()
    assert question == f'What is said about "{chunk.text[:80]}"?'


def test_questions_of_a_file(tmp_path):
    path = tmp_path / "q.txt"
    path.write_text("One?\n\n  Two?\n")
    assert load_questions(path) == ["One?", "Two?"]
    path.write_text("\n")
    with pytest.raises(InvalidInput, match="holds no questions"):
        load_questions(path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_questions(tmp_path / "nowhere.txt")
