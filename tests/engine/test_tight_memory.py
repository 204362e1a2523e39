"""A paged cache of a few blocks and a store of a few chunks: preemption, cancellation, a flat store."""

import asyncio
import itertools
import random
import threading
import time

import pytest

from cachecraft_rag import ChunkPrompt

SAMPLING = {"max_tokens": 8, "logprobs": 3}
BLOCKS = 10
BLOCK = 128
QUESTION = "Who keeps bees?"


@pytest.fixture(scope="module")
def tight(start_engine):
    bytes_per_block = 2 * 30 * 3 * 64 * 4 * BLOCK  # SmolLM2-135M in float32
    with start_engine(
        kv_cache_gb=(BLOCKS * bytes_per_block + 1000) / (1 << 30),
        cpu_store_gb=0.04,  # about 900 tokens
        max_model_len=(BLOCKS - 2) * BLOCK,
        eviction="lru",  # so that it is known which chunk leaves
        max_num_batched_tokens=256,
    ) as engine:
        yield engine


@pytest.fixture
def fills_the_cache(tight, passages, prompt_of_length):
    """A plain prompt that needs nearly all blocks there are: it hangs where any leaked."""

    def check():
        (chunk,) = passages(1)
        prompt = prompt_of_length(tight, (BLOCKS - 2) * BLOCK - 10, [], chunk)
        future = tight.submit(prompt, reuse=False, max_tokens=2)
        assert len(future.result(timeout=60).token_ids) == 2

    return check


def until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def test_many_requests_in_few_blocks(tight, passages, fills_the_cache):
    """Together they need several times the blocks there are, and grow over a block's edge while they decode."""
    chunks = passages(6, 4)
    tight.prewarm(chunks[:3], progress=False)
    rng = random.Random(1)
    prompts = [ChunkPrompt.chat(rng.sample(chunks, rng.randint(1, 3)), QUESTION) for _ in range(10)]
    options = {"max_tokens": 12, "ignore_eos": True}
    plain = tight.generate_batch(prompts, reuse=False, fresh=True, **options)
    pending = [tight.submit(prompt, recompute_ratio=1.0, **options) for prompt in prompts]
    answers = [future.result(timeout=240) for future in pending]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    assert tight.check() == []
    fills_the_cache()


def test_preempted_requests_plan_again(tight, passages, prompt_of_length, fills_the_cache):
    """Five prompts of just under two blocks grow into a third: five times three are more than there are."""
    chunks = passages(5)
    prompts = [prompt_of_length(tight, 2 * BLOCK - 6, [], chunk) for chunk in chunks]
    options = {"max_tokens": 16, "ignore_eos": True}
    plain = tight.generate_batch(prompts, reuse=False, fresh=True, **options)
    tight.prewarm(chunks, progress=False)
    pending = [tight.submit(prompt, recompute_ratio=1.0, **options) for prompt in prompts]
    answers = [future.result(timeout=240) for future in pending]
    assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in plain]
    assert sum(answer.report.replans for answer in answers) > 0, "nothing was preempted"
    assert tight.check() == []
    fills_the_cache()


def test_prompts_that_end_at_a_blocks_edge_do_not_wait_for_each_other(tight, passages, prompt_of_length):
    """Each holds whole blocks for its promise and needs one more for its last token."""
    chunks = passages(8)
    prompts = [prompt_of_length(tight, 2 * BLOCK + 1, [], chunk) for chunk in chunks]
    pending = [tight.submit(prompt, max_tokens=3) for prompt in prompts]
    assert all(len(future.result(timeout=120).token_ids) > 0 for future in pending)
    assert tight.check() == []


def test_new_orderings_leave_the_store_flat(tight, passages, outcomes):
    chunks = passages(4, 3)
    tight.delete(everything=True)
    tight.prewarm(chunks, progress=False)
    before = tight.stats()
    hits = 0
    for order in list(itertools.permutations(chunks))[:12]:
        hits += outcomes(tight.generate(ChunkPrompt.chat(order, QUESTION), max_tokens=1)).count("HIT")
    after = tight.stats()
    assert hits == 48
    assert after["used_bytes"] == after["store_bytes"] == before["used_bytes"]
    assert after["stored"] == before["stored"]
    assert after["evicted"] == before["evicted"]
    assert tight.check() == []


def test_a_stream_of_new_chunks_never_exceeds_the_store(tight, passages):
    capacity = tight.stats()["capacity_bytes"]
    evicted = tight.stats()["evicted"]
    for chunk in passages(12, 4):
        tight.generate(ChunkPrompt.chat([chunk], QUESTION), max_tokens=1)
        stats = tight.stats()
        assert stats["used_bytes"] <= capacity
        assert stats["store_bytes"] <= capacity
    assert tight.stats()["evicted"] > evicted
    assert tight.check() == []


def test_pinned_chunks_stay_while_others_come_and_go(tight, passages, outcomes):
    tight.delete(everything=True)
    pinned = passages(2, 3)
    tight.prewarm(pinned, pin=True, progress=False)
    tight.prewarm(passages(10, 4), progress=False)
    assert tight.stats()["evicted"] > 0
    assert outcomes(tight.generate(ChunkPrompt.chat(pinned[::-1], QUESTION), max_tokens=1)) == ["HIT", "HIT"]
    tight.pin([chunk.id for chunk in pinned], pinned=False)
    tight.prewarm(passages(10, 4), progress=False)
    assert outcomes(tight.generate(ChunkPrompt.chat(pinned, QUESTION), max_tokens=1)) != ["HIT", "HIT"]


def test_an_abandoned_stream_frees_its_blocks(tight, passages, fills_the_cache):
    prompts = [ChunkPrompt.chat([chunk], QUESTION) for chunk in passages(4, 6)]
    for prompt in prompts:
        stream = tight.stream(prompt, max_tokens=400, ignore_eos=True)
        next(stream)
        stream.close()
    fills_the_cache()
    assert tight.check() == []


async def test_a_cancelled_task_frees_its_blocks(tight, passages, fills_the_cache):
    for chunk in passages(4, 6):
        task = asyncio.create_task(
            tight.agenerate(ChunkPrompt.chat([chunk], QUESTION), max_tokens=400, ignore_eos=True)
        )
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.to_thread(fills_the_cache)
    assert await asyncio.to_thread(tight.check) == []


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.1, 0.3])
def test_cancelled_while_its_plan_is_in_flight(tight, passages, fills_the_cache, outcomes, pause):
    """What it was storing is not there, or there whole; its blocks and its reservations are gone."""
    chunks = passages(3, 9)
    futures = [tight.submit(ChunkPrompt.chat([chunk], QUESTION), max_tokens=50, ignore_eos=True) for chunk in chunks]
    time.sleep(pause)
    for future in futures:
        future.cancel()
    fills_the_cache()
    assert until(lambda: tight.check() == [])
    stats = tight.stats()
    assert stats["used_bytes"] == stats["store_bytes"], "a reservation outlived its request"
    answer = tight.generate(ChunkPrompt.chat([chunks[0]], QUESTION), max_tokens=1)
    assert outcomes(answer)[0] in ("HIT", "MISS")
    assert tight.check() == []


def test_cancelled_and_deleted_while_in_flight(tight, passages):
    chunks = passages(2, 9)
    tight.delete(everything=True)
    tight.prewarm(chunks, progress=False)
    for policy in ("first", "random"):
        future = tight.submit(
            ChunkPrompt.chat(chunks[::-1], QUESTION), policy=policy, recompute_ratio=0.9, max_tokens=50
        )
        time.sleep(0.15)
        tight.delete(everything=True)
        future.cancel()
        time.sleep(0.3)
        assert tight.check() == []
        tight.prewarm(chunks, progress=False)
    stats = tight.stats()
    assert stats["used_bytes"] == stats["store_bytes"]


def test_threads_that_come_and_go(tight, passages, fills_the_cache):
    prompts = [ChunkPrompt.chat([chunk], QUESTION) for chunk in passages(6, 3)]
    failures = []

    def work(prompt, read):
        stream = tight.stream(prompt, max_tokens=12, ignore_eos=True)
        got = list(itertools.islice(stream, read))
        stream.close()
        if not got:
            failures.append(prompt)

    threads = [
        threading.Thread(target=work, args=(prompt, 1 + number % 4)) for number, prompt in enumerate(prompts * 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    fills_the_cache()
    assert tight.check() == []
