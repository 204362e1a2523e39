"""The same prompt again and again, and prompts of which every token is cached."""

import pytest

from cachecraft_rag import ChunkPrompt

BLOCK = 128
SAMPLING = {"max_tokens": 4, "logprobs": 5}


def test_same_request_twice_then_ten_times(engine, passages, outcomes, assert_exact):
    chunks = passages(3)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks, "Who keeps bees?")
    first = engine.generate(prompt, **SAMPLING)
    again = [engine.generate(prompt, **SAMPLING) for _ in range(11)]
    assert {answer.token_ids for answer in again} == {first.token_ids}
    for answer in again:
        assert outcomes(answer) == ["HIT"] * 3
        assert answer.report.computed_tokens < first.prompt_tokens / 2
        assert answer.report.prompt_tokens == answer.prompt_tokens
    assert engine.check() == []
    assert_exact(engine, prompt)


def test_a_miss_is_stored_and_hit_by_the_next_request(engine, passages, outcomes, assert_exact):
    chunks = passages(3)
    prompt = ChunkPrompt.chat(chunks, "What does Cleo own?")
    first = engine.generate(prompt, **SAMPLING)
    assert outcomes(first) == ["MISS"] * 3
    assert all("not in the store" in chunk.reason for chunk in first.report.chunks)
    assert_exact(engine, prompt, first)  # nothing was reused, so it is plain prefill
    moved = ChunkPrompt.chat(chunks[::-1], "What does Cleo own?")
    second = engine.generate(moved, **SAMPLING)
    assert outcomes(second) == ["HIT"] * 3
    assert_exact(engine, moved)


def test_a_stored_first_chunk_is_exact_without_any_recompute(alone_engine, passages, assert_exact):
    (chunk,) = passages(1, 8)
    alone_engine.prewarm([chunk], progress=False)
    prompt = ChunkPrompt.chat([chunk], "Who paints doors?")
    answer = alone_engine.generate(prompt, policy="none", **SAMPLING)
    (line,) = answer.report.chunks
    assert (line.outcome, line.recomputed, line.exact) == ("HIT", 0, True)
    assert answer.report.computed_tokens == answer.prompt_tokens - line.offset - line.tokens
    assert_exact(alone_engine, prompt, answer)


@pytest.mark.parametrize("policy", ["none", "first", "all"])
def test_total_is_a_multiple_of_the_block_size_and_all_is_cached(
    engine, passages, prompt_of_length, assert_exact, policy
):
    """Ends in a chunk; the second time vLLM's prefix cache holds the prompt's first block."""
    before = passages(1)
    (last,) = passages(1)
    engine.prewarm([*before, last], progress=False)
    prompt = prompt_of_length(engine, 2 * BLOCK, before, last)
    answers = [engine.generate(prompt, policy=policy, **SAMPLING) for _ in range(3)]
    assert len({answer.token_ids for answer in answers}) == 1
    assert answers[0].report.prefix_cache_tokens == 0
    assert answers[1].report.prefix_cache_tokens == BLOCK
    if policy == "all":
        for answer in answers:
            assert_exact(engine, prompt, answer)


def test_prefix_cache_holds_all_but_the_last_token(engine, passages, prompt_of_length, assert_exact):
    before, (last,) = passages(1), passages(1)
    engine.prewarm([*before, last], progress=False)
    prompt = prompt_of_length(engine, 2 * BLOCK + 1, before, last)
    answers = [engine.generate(prompt, recompute_ratio=1.0, **SAMPLING) for _ in range(3)]
    for answer in answers[1:]:
        assert answer.report.prefix_cache_tokens == 2 * BLOCK
        assert answer.report.computed_tokens == 1
        assert answer.report.hits == 2
    for answer in answers:
        assert_exact(engine, prompt, answer)


def test_empty_question(engine, passages, outcomes, assert_exact):
    chunks = passages(2)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks, "")
    for _ in range(2):
        assert outcomes(engine.generate(prompt, **SAMPLING)) == ["HIT", "HIT"]
    assert_exact(engine, prompt)
    assert_exact(engine, prompt)


@pytest.mark.parametrize("lead", ["", "Facts:\n"])
def test_free_form_prompt_that_ends_in_a_chunk(engine, passages, outcomes, assert_exact, lead):
    chunks = passages(2)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.from_parts([lead, *chunks])
    for _ in range(2):
        assert outcomes(engine.generate(prompt, **SAMPLING)) == ["HIT", "HIT"]
    assert_exact(engine, prompt)


def test_the_same_chunk_twice_in_one_prompt(engine, passages, outcomes, assert_exact):
    a, b = passages(2)
    for stored in (False, True):
        if stored:
            engine.prewarm([a, b], progress=False)
        prompt = ChunkPrompt.chat([a, b, a], f"Who, {stored}?")
        assert_exact(engine, prompt)
        answer = engine.generate(prompt, **SAMPLING)
    assert outcomes(answer) == ["HIT"] * 3
    assert engine.check() == []
