"""Copies on the device, forced on a CPU: the same answers, and really from the copies."""

from pathlib import Path

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.verification.compare import compare

QUESTION = "Who keeps bees?"
SAMPLING = {"max_tokens": 4, "logprobs": 20}
CHOICES = [
    {"policy": "none", "recompute_ratio": 0.0},
    {"policy": "first", "recompute_ratio": 0.15},
    {"policy": "question", "recompute_ratio": 0.15},
    {"policy": "deviation", "recompute_ratio": 0.15},
]


@pytest.fixture(scope="module")
def tiered(start_engine):
    """Like `sliced_engine`, with room on the device for some 460 tokens: for a part of what the tests ask for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent))
        vllm_args = {"max_logprobs": 500, "worker_extension_cls": "device_extension.DeviceCopies"}
        options = {"max_num_batched_tokens": 256, "enable_prefix_caching": False, "vllm_args": vllm_args}
        with start_engine(device_store_gb=0.02, **options) as engine:
            yield engine


def spoil(engine):
    engine._loop.run(engine._client.requests._llm.collective_rpc("spoil_device_copies"))


def test_answers_are_the_same_with_some_chunks_on_the_device_and_others_not(sliced_engine, tiered, passages):
    chunks = passages(4, 6)
    for engine in (sliced_engine, tiered):
        engine.prewarm(chunks, progress=False)
    assert tiered.stats()["chunks_on_device"] == 0
    orders = [chunks, chunks[::-1], [chunks[2], chunks[0]]]
    for choice in CHOICES:
        for order in orders:
            prompt = ChunkPrompt.chat(order, QUESTION)
            expected, answer = (engine.generate(prompt, **choice, **SAMPLING) for engine in (sliced_engine, tiered))
            assert answer.report.hits == len(order)
            assert answer.token_ids == expected.token_ids
            assert compare(expected, answer).logprob == 0.0
    stats = tiered.stats()
    assert 0 < stats["chunks_on_device"] < 4
    assert stats["device_hits"] > 0
    assert 0 < stats["device_bytes"] <= stats["device_capacity_bytes"] <= 0.02 * 2**30
    assert tiered.check() == []
    assert sliced_engine.stats()["device_capacity_bytes"] == 0


@pytest.mark.parametrize("choice", CHOICES[:1] + CHOICES[2:], ids=lambda choice: choice["policy"])
def test_what_is_on_the_device_is_read_from_there(tiered, passages, choice):
    """Spoilt copies must show; deleting a chunk takes its copy along."""
    chunks = passages(2)
    prompt = ChunkPrompt.chat(chunks, QUESTION)
    tiered.prewarm(chunks, progress=False)
    first, second = (tiered.generate(prompt, **choice, **SAMPLING) for _ in range(2))
    assert compare(first, second).logprob == 0.0
    assert tiered.stats()["chunks_on_device"] >= 2
    spoil(tiered)
    spoilt = compare(first, tiered.generate(prompt, **choice, **SAMPLING))
    assert spoilt.parts_at == 0 or spoilt.logprob > 0.1
    tiered.delete(everything=True)
    stats = tiered.stats()
    assert (stats["chunks_on_device"], stats["device_bytes"]) == (0, 0)
    tiered.prewarm(chunks, progress=False)
    assert compare(first, tiered.generate(prompt, **choice, **SAMPLING)).logprob < 1e-3
    assert tiered.check() == []


def test_ratio_one_uses_no_copies(tiered, passages, assert_exact):
    chunks = passages(2)
    tiered.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks, QUESTION)
    tiered.generate(prompt, policy="none", recompute_ratio=0.0, max_tokens=1)
    spoil(tiered)
    assert_exact(tiered, prompt)
