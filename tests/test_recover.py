"""Chunks found in flat text: exactly, also where they overlap and repeat, in linear time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag import Chunk, Text
from cachecraft_rag.prompt import JOINER, spell_out
from cachecraft_rag.recover import RecentChunks


def recent(*texts: str, **options: int) -> RecentChunks:
    chunks = RecentChunks(**{"min_chars": 1, **options})
    chunks.remember([Chunk(text) for text in texts])
    return chunks


def shape(parts) -> list[str]:
    return [f"[{part.text}]" if isinstance(part, Chunk) else part for part in parts]


def spelled(parts) -> str:
    """As a prompt spells it: the text of a chunk, its joiner, and what follows without one of its own."""
    return "".join(text for _, text in spell_out([p if isinstance(p, Chunk) else Text(p) for p in parts], JOINER))


def test_chunks_between_texts():
    parts = recent("one", "two").split("Read: two\n\none\n\nWhat?")
    assert shape(parts) == ["Read: ", "[two]", "[one]", "What?"]
    assert all(part.recovered for part in parts if isinstance(part, Chunk))


def test_only_with_the_blank_line_that_a_chunk_brings():
    assert shape(recent("one").split("one two one")) == ["one two one"]
    assert shape(recent("one").split("one\n\none")) == ["[one]", "one"]


def test_more_blank_lines_stay():
    flat = "one\n\n\n\ntwo\n\n\n\n\n\nWhat?"
    parts = recent("one", "two").split(flat)
    assert [part.text for part in parts if isinstance(part, Chunk)] == ["one", "two"]
    assert spelled(parts) == flat


def test_the_longest_of_those_that_begin_together():
    assert shape(recent("one", "one\n\ntwo").split("one\n\ntwo\n\nx")) == ["[one\n\ntwo]", "x"]


def test_a_chunk_whose_longer_sister_is_not_there():
    assert shape(recent("a b c", "a b").split("a b\n\na b c\n\n")) == ["[a b]", "[a b c]"]


def test_repeated_and_self_overlapping_texts():
    assert shape(recent("aa").split("aaa\n\naa\n\n")) == ["a", "[aa]", "[aa]"]


def test_characters_of_all_lengths():
    assert shape(recent("日本語", "née 🙂").split("é日本語\n\nnée 🙂\n\n!")) == ["é", "[日本語]", "[née 🙂]", "!"]


def test_short_chunks_and_forgotten_ones_are_left_alone():
    assert shape(recent("one", min_chars=4).split("one\n\n")) == ["one\n\n"]
    chunks = recent("one", "two", capacity=1)
    assert len(chunks) == 1
    assert shape(chunks.split("one\n\ntwo\n\n")) == ["one\n\n", "[two]"]


def test_nothing_known_and_nothing_given():
    assert RecentChunks().split("text") == ["text"]
    assert recent("one").split("") == []


def test_the_document_of_the_last_retrieval_counts():
    chunks = RecentChunks(min_chars=1)
    chunks.remember([Chunk("one", "old")])
    assert chunks.split("one\n\n")[0].document_id == "old"
    chunks.remember([Chunk("one", "new")])
    [found] = chunks.split("one\n\n")
    assert isinstance(found, Chunk)
    assert found.document_id == "new"


@given(st.lists(st.text("ab\n", min_size=1, max_size=5).filter(str.strip), max_size=6), st.text("ab\n", max_size=60))
def test_the_parts_always_spell_the_text(texts, text):
    assert spelled(recent(*texts).split(text)) == text


@given(st.permutations(["alpha beta", "beta", "alpha", "beta gamma"]))
def test_a_joined_list_of_chunks_comes_back_whole(texts):
    flat = "".join(f"{text}\n\n" for text in texts)
    assert shape(recent(*texts).split(flat)) == [f"[{text}]" for text in texts]
