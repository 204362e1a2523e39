"""Chunks that are stored as computed behind stand-in passages, which is the default."""

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.stand_in import STAND_IN

SAMPLING = {"max_tokens": 4, "logprobs": 5}


def test_behind_those_very_passages_stored_kv_is_that_of_plain_vllm(engine, passages, assert_exact):
    (chunk,) = passages(1, 8)
    engine.prewarm([chunk], progress=False)
    prompt = ChunkPrompt.chat([*STAND_IN, chunk], "Who keeps bees?")
    answer = engine.generate(prompt, policy="none", recompute_ratio=0.0, **SAMPLING)
    line = answer.report.chunks[-1]
    assert (line.outcome, line.recomputed, line.exact) == ("HIT", 0, True)
    assert line.reason == "same prefix as when it was stored"
    assert_exact(engine, prompt, answer)


def test_all_chunks_of_a_prompt_are_repaired(engine, passages, outcomes, assert_exact):
    chunks = passages(3)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks, "Who keeps bees?")
    answer = engine.generate(prompt, policy="first", recompute_ratio=0.1, **SAMPLING)
    assert outcomes(answer) == ["HIT"] * 3
    assert all(line.recomputed == -(-line.tokens // 10) and not line.exact for line in answer.report.chunks)
    assert_exact(engine, prompt)


def test_a_small_context_takes_fewer_of_them(start_engine, passages, assert_exact):
    (chunk,) = passages(1)
    with start_engine(max_model_len=512) as engine:
        engine.prewarm([chunk], progress=False)
        one = ChunkPrompt.chat([STAND_IN[0], chunk], "Who keeps bees?")
        answer = engine.generate(one, policy="none", recompute_ratio=0.0, **SAMPLING)
        assert answer.report.chunks[-1].exact
        assert_exact(engine, one, answer)
