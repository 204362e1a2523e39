import pytest

from cachecraft_rag.calibration.samples import draw_samples, match
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput

CHUNKS = [Chunk(f"the number {number} of the {animal}", f"{number}.md") for number, animal in enumerate("abcdefghij")]


def test_each_sample_is_one_chunk_among_different_others():
    samples = draw_samples(CHUNKS, [], count=25, chunks_each=4)
    assert len(samples) == 25
    for sample in samples:
        assert len({chunk.id for chunk in sample.chunks}) == 4
        assert sample.own in sample.chunks
        assert sample.question is None
    assert {sample.own.id for sample in samples[:10]} == {chunk.id for chunk in CHUNKS}  # each once, then again
    assert len({sample.chunks.index(sample.own) for sample in samples}) > 1
    assert len({sample.chunks for sample in samples}) == 25


def test_the_seed_decides():
    first, again, other = (draw_samples(CHUNKS, [], count=9, chunks_each=4, seed=seed) for seed in (1, 1, 2))
    assert first == again != other


def test_few_chunks_are_all_taken_and_the_same_text_counts_once():
    samples = draw_samples([*CHUNKS[:3], Chunk(CHUNKS[0].text, "copy.md")], [], count=3, chunks_each=8)
    assert {len(sample.chunks) for sample in samples} == {3}
    with pytest.raises(InvalidInput, match="1 chunk is not enough"):
        draw_samples([CHUNKS[0], Chunk(CHUNKS[0].text)], [], count=3, chunks_each=8)


def test_a_question_belongs_to_the_chunk_that_shares_its_rare_words():
    chunks = [Chunk("bees are kept by Greta"), Chunk("Hugo owns a glass boat, and bees"), Chunk("a boat of the sea")]
    questions = ["Who keeps bees: Greta?", "Who owns a GLASS boat?", "What is the sea?"]
    assert match(questions, chunks) == [0, 1, 2]
    samples = draw_samples(chunks, questions, count=2, chunks_each=2)
    assert len(samples) == 2
    for sample in samples:
        assert sample.own == chunks[questions.index(sample.question)]
