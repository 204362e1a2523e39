"""Many questions in one engine, one after the other and together: no answer depends on what came before it."""

import random

from cachecraft_rag import ChunkPrompt

SAMPLING = {"max_tokens": 4, "logprobs": 3}
QUESTIONS = ("Who keeps bees?", "Where does Edda live?", "What does Kira own?", "Who paints doors?")


def some_prompts(chunks, number, seed):
    rng = random.Random(seed)
    return [
        ChunkPrompt.chat(
            rng.sample(chunks, rng.randint(1, 3)), rng.choice(QUESTIONS), question_first=rng.random() < 0.2
        )
        for _ in range(number)
    ]


def test_forty_questions_equal_plain_prefill(engine, passages):
    prompts = some_prompts(passages(8, 2), 40, seed=1)
    plain = engine.generate_batch(prompts, reuse=False, fresh=True, **SAMPLING)
    ours = [engine.generate(prompt, recompute_ratio=1.0, **SAMPLING) for prompt in prompts[:20]]
    ours += engine.generate_batch(prompts[20:], recompute_ratio=1.0, **SAMPLING)
    assert [answer.text for answer in ours] == [answer.text for answer in plain]
    assert [answer.token_ids for answer in ours] == [answer.token_ids for answer in plain]
    assert engine.check() == []


def test_repaired_answers_do_not_depend_on_what_came_before(engine, passages):
    """The same prompts in another order, and all at once, with the store warm: the same greedy answers."""
    chunks = passages(6)
    engine.prewarm(chunks, progress=False)
    prompts = some_prompts(chunks, 16, seed=2)
    one_by_one = [engine.generate(prompt, **SAMPLING) for prompt in prompts]
    backwards = [engine.generate(prompt, **SAMPLING) for prompt in prompts[::-1]][::-1]
    together = engine.generate_batch(prompts, **SAMPLING)
    expected = [answer.token_ids for answer in one_by_one]
    assert [answer.token_ids for answer in backwards] == expected
    assert [answer.token_ids for answer in together] == expected
    for answer in one_by_one:
        assert answer.report.misses == 0
    assert engine.check() == []
