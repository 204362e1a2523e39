import pytest

from cachecraft_rag.calibration.samples import LEAST, draw_samples, match
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput

CHUNKS = [Chunk(f"the number {number} of the {animal}", f"{number}.md") for number, animal in enumerate("abcdefghij")]
QUESTIONS = [f"What is number {number}?" for number in range(10)]


def test_each_sample_is_one_chunk_among_different_others():
    samples = draw_samples(CHUNKS, [], count=25, chunks_each=4).samples
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
    samples = draw_samples([*CHUNKS[:4], Chunk(CHUNKS[0].text, "copy.md")], [], count=8, chunks_each=8).samples
    assert {len(sample.chunks) for sample in samples} == {4}
    with pytest.raises(InvalidInput, match="1 chunk is not enough"):
        draw_samples([CHUNKS[0], Chunk(CHUNKS[0].text)], [], count=8, chunks_each=8)


def test_what_would_be_drawn_twice_counts_once():
    samples = draw_samples(CHUNKS[:4], [], count=32, chunks_each=2).samples
    assert len({sample.chunks for sample in samples}) == len(samples) == 12


@pytest.mark.parametrize(("chunks", "samples"), [(2, 2), (3, 6)])
def test_too_few_different_samples_are_refused(chunks, samples):
    with pytest.raises(InvalidInput, match=f"{chunks} different chunks make {samples} different samples.*documents"):
        draw_samples(CHUNKS[:chunks], [], count=32, chunks_each=8)


@pytest.mark.parametrize(("questions", "count"), [(QUESTIONS[:1], 1), (QUESTIONS[:7], 7), (QUESTIONS[:2] * 20, 2)])
def test_too_few_different_questions_are_refused(questions, count):
    with pytest.raises(InvalidInput, match=f"documents is {count}, too few.*at least {LEAST}"):
        draw_samples(CHUNKS, questions, count=32, chunks_each=4)


def test_each_question_is_asked_once():
    drawn = draw_samples(CHUNKS, QUESTIONS * 3, count=32, chunks_each=2)
    assert sorted(sample.question for sample in drawn.samples) == QUESTIONS
    assert len(draw_samples(CHUNKS, QUESTIONS, count=9, chunks_each=2).samples) == 9


def test_a_question_belongs_to_the_chunk_that_shares_its_rare_words():
    chunks = [Chunk("bees are kept by Greta"), Chunk("Hugo owns a glass boat, and bees"), Chunk("a boat of the sea")]
    questions = ["Who keeps bees: Greta?", "Who owns a GLASS boat?", "What is the sea?"]
    assert list(match(questions, chunks)) == [0, 1, 2]
    for sample in draw_samples(CHUNKS, QUESTIONS, count=9, chunks_each=2).samples:
        assert sample.own == CHUNKS[QUESTIONS.index(sample.question)]


def test_scripts_without_spaces_are_matched_by_pairs_of_characters():
    texts = ["养蜂人格蕾塔住在海边", "雨果有一艘玻璃船。", "図書館は1871年に設立", "บ้านริมทะเลสีฟ้า"]
    chunks = [Chunk(text) for text in texts]
    assert list(match(["玻璃船是谁的？", "図書館はいつ?", "海边住着谁？", "ใครอยู่ริมทะเล"], chunks)) == [1, 2, 0, 3]


def test_questions_that_share_no_word_are_passed_over_and_counted():
    drawn = draw_samples(CHUNKS, [*QUESTIONS, "zzz?", "雨果?"], count=32, chunks_each=2)
    assert (len(drawn.samples), drawn.skipped) == (10, 2)
    assert draw_samples(CHUNKS, QUESTIONS, count=32, chunks_each=2).skipped == 0
    with pytest.raises(InvalidInput, match=r"is 7 \(1 share no word with any chunk, such as 'zzz\?'\), too few"):
        draw_samples(CHUNKS, [*QUESTIONS[:7], "zzz?"], count=32, chunks_each=2)
