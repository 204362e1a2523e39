"""What ids a chunk has, whatever stands beside it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_tokenizers import NASTY, assert_tiled, byte_level, each_kind, fast, ids_of, made, nasty, solid

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.prompt import ChunkPrompt, Part
from cachecraft_rag.tokenise import PromptTokenizer


@each_kind
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_chunk_ids_do_not_depend_on_neighbours_and_segments_tile(kind: str, data: st.DataObject) -> None:
    prompts, _ = made(kind)
    chunks = [Chunk(text, "doc") for text in data.draw(st.lists(solid, min_size=1, max_size=3))]
    before, between, after = (data.draw(st.one_of(st.just(""), nasty)) for _ in range(3))
    parts: list[str | Part] = [before, chunks[0], between, *chunks[1:], after]
    for prompt in (
        ChunkPrompt.from_parts(parts),
        ChunkPrompt.from_messages([{"role": "user", "content": parts}]),
        ChunkPrompt.chat(chunks, after, system=before),
        ChunkPrompt.chat(chunks, after, question_first=True),
    ):
        encoded = prompts.encode(prompt)
        assert_tiled(encoded)
        assert [segment.chunk_id for segment in encoded.chunks] == [chunk.id for chunk in chunks]
        for index, chunk in enumerate(chunks):
            assert ids_of(encoded, index) == prompts.encode_chunk(chunk)
            assert encoded.chunks[index].digest == chunk.digest
            assert encoded.chunks[index].document_id == "doc"


def test_chunk_ids_are_those_of_the_text_and_the_joiner() -> None:
    prompts, tokenizer = made("byte level")
    assert prompts.encode_chunk(" the words ") == tuple(tokenizer("the words\n\n")["input_ids"])


@each_kind
def test_order_of_chunks_only_permutes(kind: str) -> None:
    prompts, _ = made(kind)
    chunks = [Chunk(text) for text in NASTY if text.strip()]
    shuffled = random.Random(0).sample(chunks, len(chunks))
    one, other = (prompts.encode(ChunkPrompt.chat(order, "Why?")) for order in (chunks, shuffled))
    assert len(one.token_ids) == len(other.token_ids)
    place = {segment.chunk_id: index for index, segment in enumerate(other.chunks)}
    for index, segment in enumerate(one.chunks):
        assert segment.chunk_id is not None
        assert ids_of(one, index) == ids_of(other, place[segment.chunk_id])
    assert one.token_ids[: one.chunks[0].start] == other.token_ids[: other.chunks[0].start]
    assert one.token_ids[one.chunks[-1].stop :] == other.token_ids[other.chunks[-1].stop :]


def test_text_between_chunks_is_a_text_segment() -> None:
    prompts, _ = made("byte level", None)
    encoded = prompts.encode(ChunkPrompt.from_parts(["[1] ", "x", Chunk("a"), "\n\n[2] ", Chunk("a"), Chunk("b"), "?"]))
    assert [segment.kind for segment in encoded.segments] == ["text", "chunk", "text", "chunk", "chunk", "text"]
    assert ids_of(encoded, 0) == ids_of(encoded, 1)


@each_kind
@pytest.mark.parametrize("after", ["\n\nthe question", "the question"])
def test_the_joiner_is_folded_into_the_chunk(kind: str, after: str) -> None:
    prompts, _ = made(kind)
    flat, folded = (prompts.encode(ChunkPrompt.chat(["words"], text)) for text in (after, "the question"))
    assert flat == folded


def test_another_joiner() -> None:
    prompts = PromptTokenizer.from_pretrained(fast(byte_level(add_bos=False)), joiner="\n")
    default, _ = made("byte level")
    assert prompts.encode_chunk("the words") == default.encode_chunk("the words")[:-2] + prompts.encode_chunk("x")[-1:]
    assert prompts.fingerprint() != default.fingerprint()
