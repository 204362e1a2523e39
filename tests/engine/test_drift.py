"""The drift guard on a real engine."""

import asyncio
import time

import pytest

from cachecraft_rag import ChunkPrompt, drift

QUESTIONS = ("Who keeps bees?", "Where does Greta live?", "What was bought in 1950?", "Who owns a glass boat?")
COMPARED = {"drift_guard": 1.0, "max_num_seqs": 8}


def prompts(chunks):
    return [ChunkPrompt.chat(chunks[number:] + chunks[:number], text) for number, text in enumerate(QUESTIONS)]


def settled(engine, count, seconds=60.0):
    """The guard's numbers once `count` answers were compared or skipped."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = engine.stats()["drift"]
        if found["samples"] + sum(found["skipped"].values()) >= count:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{found} after {seconds} s, {count} expected")


@pytest.fixture(scope="module")
def exact(start_engine):
    """Every token of a hit is chosen, which 1.0 says as well, but without a look at what is stored."""
    with start_engine(recompute_ratio=0.9999, **COMPARED) as engine:
        yield engine


def test_where_every_token_is_computed_every_token_agrees(exact, passages):
    chunks = passages(4)
    exact.prewarm(chunks, progress=False)
    before = exact.stats()["drift"]
    tokens = 0
    for number, prompt in enumerate(prompts(chunks), start=1):
        tokens += len(exact.generate(prompt, max_tokens=12).token_ids)
        settled(exact, before["samples"] + number)
    found = settled(exact, before["samples"] + len(QUESTIONS))
    assert found["samples"] == before["samples"] + len(QUESTIONS)
    assert found["tokens"] == before["tokens"] + tokens
    assert (found["agreement"], found["window_agreement"], found["ratio"]) == (1.0, 1.0, 0.9999)


def test_an_answer_that_fills_the_context_is_compared(exact, passages, prompt_of_length):
    chunks = passages(2)
    exact.prewarm(chunks, progress=False)
    before = exact.stats()["drift"]["samples"]
    answer = exact.generate(prompt_of_length(exact, 2040, chunks[:1], chunks[1]), max_tokens=8, ignore_eos=True)
    assert answer.prompt_tokens + len(answer.token_ids) == exact.max_model_len
    found = settled(exact, before + 1)
    assert (found["agreement"], found["skipped"]["failed"]) == (1.0, 0)


def test_what_is_not_compared_is_counted(exact, passages):
    chunks = passages(3)
    exact.prewarm(chunks, progress=False)
    first, *others = prompts(chunks)
    before = exact.stats()["drift"]
    exact.generate(prompts(passages(2))[0], max_tokens=4)  # all missed
    exact.generate(first, max_tokens=4, temperature=0.9, seed=1)
    exact.generate(first, max_tokens=4, logit_bias={3: 5.0})
    stream = exact.stream(first, max_tokens=200, ignore_eos=True)
    next(stream)
    stream.close()
    exact.generate(first, max_tokens=4, recompute_ratio=0.5)  # named its own ratio
    exact.generate(first, max_tokens=4, policy="random")
    exact.generate(first, max_tokens=4, reuse=False)
    answers = exact.generate_batch([first, *others], max_tokens=4)
    known = before["samples"] + sum(before["skipped"].values())
    found = settled(exact, known + 4 + len(answers))
    for reason in ("nothing_reused", "sampled", "constrained", "aborted"):
        assert found["skipped"][reason] == before["skipped"][reason] + 1
    compared = found["samples"] - before["samples"]
    assert compared + found["skipped"]["busy"] - before["skipped"]["busy"] == len(answers)
    assert compared >= 1


def test_far_from_full_prefill_the_ratio_rises(start_engine, passages, monkeypatch, caplog):
    monkeypatch.setattr(drift, "LEAST", 3)
    chunks = passages(6, 5)
    with start_engine(policy="random", recompute_ratio=0.0, drift_target=1.0, **COMPARED) as engine:
        engine.prewarm(chunks, progress=False)
        asked = 0
        while engine.recompute_ratio == 0.0 and asked < 20:
            answer = engine.generate(prompts(chunks)[asked % 4], max_tokens=24)
            assert (answer.report.policy, answer.report.ratio) == ("random", 0.0)
            asked += 1
            settled(engine, asked)
        found = engine.stats()["drift"]
        assert (found["ratio"], engine.recompute_ratio, found["steps"]) == (0.05, 0.05, 1)
        assert found["agreement"] < 1.0
        assert "from 0 to 0.05" in caplog.text
        assert engine.generate(prompts(chunks)[0], max_tokens=1).report.ratio == 0.05
        assert engine.generate(prompts(chunks)[0], max_tokens=1, recompute_ratio=0.1).report.ratio == 0.1
        assert "drift" not in engine.stats(namespace="default")


def test_closing_does_not_wait_for_a_comparison(start_engine, passages):
    with start_engine(**COMPARED) as engine:
        chunks = passages(8, 8)
        engine.prewarm(chunks, progress=False)
        engine.generate(prompts(chunks)[0], max_tokens=2)
        started = time.monotonic()
    assert time.monotonic() - started < 20


async def test_tasks_are_watched_alike(exact, passages):
    chunks = passages(3)
    await exact.aprewarm(chunks)
    known = exact.stats()["drift"]
    before = known["samples"] + sum(known["skipped"].values())
    await exact.agenerate(prompts(chunks)[0], max_tokens=4)
    found = await asyncio.to_thread(settled, exact, before + 1)
    assert found["samples"] == known["samples"] + 1


def test_off_by_default(engine):
    assert "drift" not in engine.stats()
