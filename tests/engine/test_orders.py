"""Cached chunks at other places: permuted, beside new ones, behind the question, after a shared beginning."""

import itertools

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.verification.compare import compare

SAMPLING = {"max_tokens": 4, "logprobs": 5}


def test_every_permutation_hits_at_new_offsets(alone_engine, passages, outcomes):
    chunks = passages(3)
    alone_engine.prewarm(chunks, progress=False)
    sizes = {chunk.id: len(alone_engine.tokenizer.encode_chunk(chunk)) for chunk in chunks}
    head = len(alone_engine.tokenizer.head_token_ids)
    orders = list(itertools.permutations(chunks))
    prompts = [ChunkPrompt.chat(order, "Who teaches geometry?") for order in orders]
    for order, prompt in zip(orders, prompts, strict=True):
        answer = alone_engine.generate(prompt, max_tokens=1)
        assert outcomes(answer) == ["HIT"] * 3
        expected, offset = [], head
        for chunk in order:
            expected.append((chunk.id, offset, sizes[chunk.id]))
            offset += sizes[chunk.id]
        assert [(line.chunk_id, line.offset, line.tokens) for line in answer.report.chunks] == expected
        assert [line.exact for line in answer.report.chunks] == [True, False, False]
    plain = alone_engine.generate_batch(prompts, reuse=False, fresh=True, **SAMPLING)
    ours = alone_engine.generate_batch(prompts, recompute_ratio=1.0, **SAMPLING)
    differences = [compare(*pair) for pair in zip(plain, ours, strict=True)]
    assert all(difference.parts_at is None and difference.logprob < 1e-3 for difference in differences)


def test_hit_miss_hit_computes_only_what_it_must(alone_engine, passages, outcomes, assert_exact):
    a, new, b = passages(3, 5)
    alone_engine.prewarm([a, b], progress=False)
    prompt = ChunkPrompt.chat([a, new, b], "Who grows pears?")
    answer = alone_engine.generate(prompt, recompute_ratio=0.1, **SAMPLING)
    assert outcomes(answer) == ["HIT", "MISS", "HIT"]
    first, missed, last = answer.report.chunks
    assert first.recomputed == 0
    assert missed.recomputed == missed.tokens
    assert last.recomputed == -(-last.tokens // 10)
    question = answer.prompt_tokens - last.offset - last.tokens
    assert answer.report.computed_tokens == missed.tokens + last.recomputed + question
    assert_exact(alone_engine, prompt)


def test_a_new_first_chunk_leaves_the_others_hits(engine, passages, outcomes, assert_exact):
    new, a, b = passages(3)
    engine.prewarm([a, b], progress=False)
    prompt = ChunkPrompt.chat([new, a, b], "Who repairs clocks?")
    assert outcomes(engine.generate(prompt, **SAMPLING)) == ["MISS", "HIT", "HIT"]
    assert_exact(engine, prompt)


def test_the_question_before_the_chunks(engine, passages, outcomes, assert_exact):
    chunks = passages(2)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks, "Who writes about the sea?", question_first=True)
    answer = engine.generate(prompt, **SAMPLING)
    assert outcomes(answer) == ["HIT", "HIT"]
    assert not any(line.exact for line in answer.report.chunks)
    assert_exact(engine, prompt)


def test_text_between_chunks_and_another_system_text(engine, passages, outcomes, assert_exact):
    a, b = passages(2)
    engine.prewarm([a, b], progress=False)
    prompt = ChunkPrompt.from_messages(
        [
            {"role": "system", "content": "Answer in one word."},
            {"role": "user", "content": ["[1] ", a, "[2] ", b, "Who?"]},
        ]
    )
    answer = engine.generate(prompt, **SAMPLING)
    assert outcomes(answer) == ["HIT", "HIT"]
    assert not any(line.exact for line in answer.report.chunks)
    assert_exact(engine, prompt)


@pytest.mark.parametrize("ratio", [0.0, 0.15, 1.0])
def test_prefix_cache_hit_that_ends_inside_a_chunk(engine, passages, assert_exact, ratio):
    """The first chunk and a half are in vLLM's prefix cache, then all is different; positions are never shifted."""
    shared, half, x, y = passages(4, 5)
    engine.prewarm([shared, half, x, y], progress=False)
    options = {"policy": "first", "recompute_ratio": ratio, **SAMPLING}
    engine.generate(ChunkPrompt.chat([shared, half, x], "Who?"), **options)
    prompt = ChunkPrompt.chat([shared, half, y, x], "What does Bram own?")
    answer = engine.generate(prompt, **options)
    inside = answer.report.prefix_cache_tokens
    second = answer.report.chunks[1]
    assert second.offset < inside < second.offset + second.tokens, "the case does not cut a chunk"
    if ratio == 1.0:
        assert_exact(engine, prompt, answer)


def test_chunks_end_in_the_middle_of_blocks(engine, passages, prompt_of_length, assert_exact):
    a, b = passages(2, 4)
    engine.prewarm([a, b], progress=False)
    head = len(engine.tokenizer.encode(ChunkPrompt.from_parts(["x", a, b])).token_ids)
    for tokens in range(head + 125, head + 132, 3):
        assert_exact(engine, prompt_of_length(engine, tokens, [a], b))
