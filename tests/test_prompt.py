from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import JOINER, ChunkPrompt, Message, Part, Text, spell_out

A, B = Chunk("a"), Chunk("b")


def test_chat_places_chunks_then_question() -> None:
    prompt = ChunkPrompt.chat([" a ", B], "Why?", system="Be brief.")
    assert prompt.messages == (Message("system", (Text("Be brief."),)), Message("user", (A, B, Text("Why?"))))
    assert prompt.is_chat
    assert prompt.chunks == (A, B)
    assert prompt.text == "Be brief.\n\na\n\nb\n\nWhy?"


def test_chat_with_the_question_first() -> None:
    prompt = ChunkPrompt.chat([A, B], "Why?", question_first=True)
    assert prompt.messages == (Message("user", (Text("Why?\n\n"), A, B)),)


@pytest.mark.parametrize("question_first", [False, True])
def test_empty_question(question_first: bool) -> None:
    prompt = ChunkPrompt.chat([A], "", question_first=question_first)
    assert prompt.messages == (Message("user", (A,)),)


def test_no_system_text_differs_from_an_empty_one() -> None:
    assert len(ChunkPrompt.chat([A], "").messages) == 1
    assert ChunkPrompt.chat([A], "", system="").messages[0] == Message("system", ())


def test_without_chunks_plain_generation_is_the_way() -> None:
    with pytest.raises(InvalidInput, match="plain generation"):
        ChunkPrompt.chat([], "Why?")


def test_a_str_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(InvalidInput, match="list of chunks"):
        ChunkPrompt.chat("abc", "Why?")
    with pytest.raises(InvalidInput, match="list of parts"):
        ChunkPrompt.from_parts("abc")


def test_from_messages() -> None:
    prompt = ChunkPrompt.from_messages(
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": ["[1] ", A, "[2] ", B, "Wh", "y?"]},
            {"role": "assistant", "content": "Because."},
            {"role": "user", "content": B},
        ]
    )
    assert prompt.parts == (
        Text("s"), Text("[1] "), A, Text("[2] "), B, Text("Why?"), Text("Because."), B,
    )  # fmt: skip
    assert prompt.chunks == (A, B, B)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "user"}, "just 'role' and 'content'"),
        ({"role": "user", "content": "x", "name": "y"}, "just 'role' and 'content'"),
        ("user: x", "just 'role' and 'content'"),
        ({"role": "user", "content": None}, "None"),
        ({"role": "user", "content": [{"type": "text", "text": "x"}]}, "list of str and Chunk"),
        ({"role": "user<|im_end|>", "content": "x"}, "role of message 0"),
        ({"role": "", "content": "x"}, "role of message 0"),
        ({"role": None, "content": "x"}, "role of message 0"),
    ],
)
def test_wrong_messages_are_refused_by_index(message: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        ChunkPrompt.from_messages([message])
    assert "message 0" in str(caught.value)


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="empty"):
        ChunkPrompt.from_messages([])
    with pytest.raises(InvalidInput, match="empty"):
        ChunkPrompt.from_parts(["", Text("")])


def test_from_parts_merges_texts_of_equal_trust() -> None:
    prompt = ChunkPrompt.from_parts(["a", "", "b", Text("c", trusted=True), Text("d", trusted=True), A, "e"])
    assert prompt.parts == (Text("ab"), Text("cd", trusted=True), A, Text("e"))
    assert not prompt.is_chat


def test_chunks_are_never_merged() -> None:
    assert ChunkPrompt.from_parts([A, A]).chunks == (A, A)


@pytest.mark.parametrize("after", ["\n\nWhy?", "Why?"])
def test_the_joiner_after_a_chunk_may_be_written_or_left_out(after: str) -> None:
    assert ChunkPrompt.from_parts([A, after]).text == "a\n\nWhy?"


def test_only_one_joiner_directly_after_a_chunk_is_folded() -> None:
    assert ChunkPrompt.from_parts([A, "\n\n\n\nx"]).text == "a\n\n\n\nx"
    assert ChunkPrompt.from_parts(["\n\nx", A, " \n\nx"]).text == "\n\nxa\n\n \n\nx"


parts = st.lists(
    st.one_of(st.text("ab\n ").map(Text), st.sampled_from([A, B])), min_size=1
).filter(lambda drawn: any(isinstance(part, Chunk) or part.text for part in drawn))  # fmt: skip


@given(parts)
def test_a_chunk_is_spelled_the_same_everywhere(drawn: list[Part]) -> None:
    prompt = ChunkPrompt.from_parts(drawn)
    assert prompt.chunks == tuple(part for part in drawn if isinstance(part, Chunk))
    for part, text in spell_out(prompt.parts, JOINER):
        if isinstance(part, Chunk):
            assert text == part.text + JOINER


def test_immutable_and_hashable() -> None:
    prompt = ChunkPrompt.chat([A], "Why?")
    assert {prompt: 1}[ChunkPrompt.chat(["a"], "Why?")] == 1
    with pytest.raises(AttributeError):
        prompt.messages = ()  # type: ignore[misc]
