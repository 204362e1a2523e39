"""Threads and tasks together, batches in order, streams that equal the answer."""

import asyncio
import concurrent.futures

import pytest

from cachecraft_rag import ChunkPrompt

SAMPLING = {"max_tokens": 8}


@pytest.fixture
def asked(engine, passages):
    """Prompts over stored chunks with answers made one by one."""
    chunks = passages(4)
    engine.prewarm(chunks, progress=False)
    orders = ([0, 1], [1, 0], [2, 3, 0], [3], [1, 2], [0, 3], [2], [3, 2, 1])
    questions = ("Who?", "Where does Hugo live?", "What does Cleo own?", "Who keeps bees?")
    prompts = [
        ChunkPrompt.chat([chunks[n] for n in order], questions[number % 4]) for number, order in enumerate(orders)
    ]
    answers = [engine.generate(prompt, **SAMPLING) for prompt in prompts]
    assert len({answer.token_ids for answer in answers}) > 4, "the prompts cannot be told apart by their answers"
    return prompts, [answer.token_ids for answer in answers]


async def test_eight_tasks_and_eight_threads_at_once(engine, asked):
    prompts, expected = asked
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(engine.generate, prompt, **SAMPLING) for prompt in prompts]
        tasks = await asyncio.gather(*(engine.agenerate(prompt, **SAMPLING) for prompt in prompts))
        assert [answer.token_ids for answer in tasks] == expected
        answers = [await asyncio.wrap_future(thread) for thread in threads]
    assert [answer.token_ids for answer in answers] == expected
    for prompt, answer in zip(prompts, answers, strict=True):
        assert [line.chunk_id for line in answer.report.chunks] == [chunk.id for chunk in prompt.chunks]
    assert len({answer.report.request_id for answer in [*tasks, *answers]}) == 16


def test_a_batch_of_twenty_keeps_its_order(engine, asked):
    prompts, expected = asked
    numbers = [(7 * n) % 8 for n in range(20)]
    answers = engine.generate_batch([prompts[n] for n in numbers], **SAMPLING)
    assert [answer.token_ids for answer in answers] == [expected[n] for n in numbers]


def test_an_empty_batch(engine):
    assert engine.generate_batch([]) == []


def test_one_bad_prompt_fails_its_batch_by_name_and_the_engine_goes_on(engine, asked):
    prompts, expected = asked
    with pytest.raises(ValueError, match="ChunkPrompt"):
        engine.generate_batch([prompts[0], "text", prompts[1]], **SAMPLING)
    assert engine.generate(prompts[2], **SAMPLING).token_ids == expected[2]


def test_a_stream_adds_up_to_the_answer(engine, asked):
    prompts, expected = asked
    deltas = list(engine.stream(prompts[2], **SAMPLING))
    whole = engine.generate(prompts[2], **SAMPLING)
    check_deltas(deltas, whole, expected[2])


async def test_an_async_stream_adds_up_to_the_answer(engine, asked):
    prompts, expected = asked
    deltas = [delta async for delta in engine.astream(prompts[2], **SAMPLING)]
    whole = await engine.agenerate(prompts[2], **SAMPLING)
    check_deltas(deltas, whole, expected[2])


def check_deltas(deltas, whole, expected):
    assert len(deltas) >= 4
    assert "".join(delta.text for delta in deltas) == whole.text == deltas[-1].answer.text
    assert sum((delta.token_ids for delta in deltas), ()) == whole.token_ids == expected
    assert [delta.answer is None for delta in deltas] == [True] * (len(deltas) - 1) + [False]
    answer = deltas[-1].answer
    assert (answer.finish_reason, answer.prompt_tokens) == (whole.finish_reason, whole.prompt_tokens)
    assert answer.report.hits == whole.report.hits
    assert answer.report.timings.first_token == answer.first_token_seconds > 0


async def test_streams_side_by_side_do_not_mix(engine, asked):
    prompts, expected = asked

    async def read(prompt):
        return sum([delta.token_ids async for delta in engine.astream(prompt, **SAMPLING)], ())

    assert await asyncio.gather(*(read(prompt) for prompt in prompts)) == expected


def test_stop_is_honoured_in_both(engine, asked):
    prompts, _ = asked
    whole = engine.generate(prompts[2], max_tokens=16)
    stop = whole.text[3:6]
    assert len(stop) == 3
    answer = engine.generate(prompts[2], max_tokens=16, stop=[stop])
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)
    streamed = "".join(delta.text for delta in engine.stream(prompts[2], max_tokens=16, stop=[stop]))
    assert streamed == answer.text


def test_the_last_report_is_kept_by_the_engine(engine, asked):
    prompts, _ = asked
    answer = engine.generate(prompts[0], **SAMPLING)
    assert engine.report == answer.report
    assert "HIT" in str(engine.report)
