"""Prompts longer than one slice of 256 tokens, without vLLM's prefix cache."""

from cachecraft_rag import ChunkPrompt

SAMPLING = {"max_tokens": 4, "logprobs": 5}
QUESTION = "Who paints doors?"


def test_misses_take_several_slices_and_are_exact(sliced_engine, passages, outcomes, assert_exact):
    chunks = passages(3, 6)
    prompt = ChunkPrompt.chat(chunks, QUESTION)
    answer = sliced_engine.generate(prompt, **SAMPLING)
    assert outcomes(answer) == ["MISS"] * 3
    assert answer.report.slices == -(-(answer.prompt_tokens - 1) // 256)
    assert_exact(sliced_engine, prompt, answer)


def test_a_chunk_longer_than_a_slice_is_stored_whole_and_reused(alone_engine, passages, outcomes, assert_exact):
    (long,) = passages(1, 20)
    (short,) = passages(1)
    tokens = len(alone_engine.tokenizer.encode_chunk(long))
    assert tokens > 2 * 256
    report = alone_engine.prewarm([long, short], progress=False)
    assert set(report.stored) == {long.id, short.id}
    exact = alone_engine.generate(ChunkPrompt.chat([long], QUESTION), policy="none", **SAMPLING)
    assert exact.report.chunks[0].recomputed == 0
    assert_exact(alone_engine, ChunkPrompt.chat([long], QUESTION), exact)
    moved = alone_engine.generate(ChunkPrompt.chat([short, long], QUESTION), **SAMPLING)
    assert outcomes(moved) == ["HIT", "HIT"]
    assert_exact(alone_engine, ChunkPrompt.chat([short, long], QUESTION))


def test_hits_over_several_slices_equal_plain_prefill_beside_others(sliced_engine, passages):
    chunks = passages(5, 5)
    sliced_engine.prewarm(chunks, progress=False)
    prompts = [ChunkPrompt.chat(chunks[n:] + chunks[:n], QUESTION) for n in range(3)]
    plain = sliced_engine.generate_batch(prompts, reuse=False, **SAMPLING)
    ours = [sliced_engine.submit(prompt, recompute_ratio=1.0, **SAMPLING) for prompt in prompts]
    beside = [sliced_engine.submit(prompt, reuse=False, **SAMPLING) for prompt in prompts[:2]]
    answers = [future.result() for future in ours]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    assert [future.result().token_ids for future in beside] == [answer.token_ids for answer in plain[:2]]
    assert all(answer.report.slices >= 3 for answer in answers)


def test_the_choice_of_tokens_does_not_depend_on_the_slices(engine, sliced_engine, passages):
    chunks = passages(5, 5)
    prompt = ChunkPrompt.chat(chunks, QUESTION)
    answers = []
    for one in (engine, sliced_engine):
        one.prewarm(chunks, progress=False)
        answers.append(one.generate(prompt, policy="random", recompute_ratio=0.5, **SAMPLING))
    assert answers[0].report.slices == 1
    assert answers[1].report.slices > 1
    assert answers[0].token_ids == answers[1].token_ids
    assert [c.recomputed for c in answers[0].report.chunks] == [c.recomputed for c in answers[1].report.chunks]


def test_deleted_while_it_is_staged_and_computed(sliced_engine, passages):
    """Deletion while requests are in flight: each answer is as if it came before or after, and the bytes go."""
    chunks = passages(4, 6)
    sliced_engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks[::-1], QUESTION)
    expected = sliced_engine.generate(prompt, recompute_ratio=1.0, **SAMPLING)
    pending = [sliced_engine.submit(prompt, recompute_ratio=0.95, **SAMPLING) for _ in range(3)]
    pending.append(sliced_engine.submit(prompt, recompute_ratio=1.0, **SAMPLING))
    sliced_engine.delete(everything=True)
    answers = [future.result() for future in pending]
    assert answers[-1].token_ids == expected.token_ids
    assert sliced_engine.check() == []
    sliced_engine.delete(everything=True)
    assert sliced_engine.stats()["store_bytes"] == 0
    assert sliced_engine.stats()["used_bytes"] == 0
