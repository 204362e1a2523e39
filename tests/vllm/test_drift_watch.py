import asyncio
from itertools import pairwise
from types import SimpleNamespace

import pytest

pytest.importorskip("vllm")

from cachecraft_rag.drift import DriftGuard, Skipped
from cachecraft_rag.errors import EngineClosed
from cachecraft_rag.vllm.drift_watch import DriftWatch, count_agreeing, is_best, not_comparable
from cachecraft_rag.vllm.sampling import make_sampling

PROMPT = (1, 2, 3)


def greedy(**options):
    return make_sampling(None, options)


class Model:
    """Full prefill says n + 1 after n. Answers only once `go` is set."""

    def __init__(self):
        self.sent = []
        self.go = asyncio.Event()
        self.error = None

    async def enqueue(self, token_ids, sampling, params, *, salt):
        self.sent.append((list(token_ids), sampling, params, salt))
        return token_ids

    async def last_output(self, token_ids):
        await self.go.wait()
        if self.error is not None:
            raise self.error
        places = [None]
        for before, own in pairwise(token_ids):
            place = {before + 1: SimpleNamespace(logprob=-0.1)}
            place.setdefault(own, SimpleNamespace(logprob=-3.0))
            places.append(place)
        return SimpleNamespace(prompt_logprobs=places, outputs=[SimpleNamespace(token_ids=[token_ids[-1] + 1])])


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def watch(model):
    return DriftWatch(DriftGuard(1.0, 0.9, 0.15), model)


async def settle(watch):
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
    assert watch._task is None


@pytest.mark.parametrize(
    ("answer", "agreed"),
    [((4, 5, 6), 3), ((4, 5, 9), 2), ((9, 10, 11), 2), ((9, 9, 9), 0), ((4,), 1), ((9,), 0)],
)
async def test_each_token_is_compared_with_what_full_prefill_says_there(model, answer, agreed):
    model.go.set()
    assert await count_agreeing(model, PROMPT, answer) == agreed
    ((sent, sampling, params, salt),) = model.sent
    assert sent == [*PROMPT, *answer[:-1]]  # so that it fits into any context that held prompt and answer
    assert (sampling.max_tokens, sampling.prompt_logprobs, params) == (1, 1, None)
    assert len(salt) == 32


def test_of_two_equally_likely_tokens_both_are_best():
    place = {1: SimpleNamespace(logprob=-0.7), 2: SimpleNamespace(logprob=-0.7), 3: SimpleNamespace(logprob=-2.0)}
    assert [is_best(place, token) for token in (1, 2, 3)] == [True, True, False]


async def test_one_at_a_time_and_the_others_are_counted(watch, model):
    for _ in range(3):
        watch.finished(PROMPT, (4, 5, 9), greedy(), 0.15)
    model.go.set()
    await settle(watch)
    watch.finished(PROMPT, (4, 5), greedy(), 0.15)
    await settle(watch)
    stats = watch.guard.stats()
    assert (stats["samples"], stats["tokens"], stats["agreed_tokens"]) == (2, 5, 4)
    assert stats["skipped"]["busy"] == 2
    assert len(model.sent) == 2


async def test_one_that_fails_is_counted_and_said(watch, model, caplog):
    model.error = EngineClosed("it is gone")
    model.go.set()
    watch.finished(PROMPT, (4, 5), greedy(), 0.15)
    await settle(watch)
    assert watch.guard.stats()["skipped"]["failed"] == 1
    assert "it is gone" in caplog.text


async def test_an_error_that_nobody_expects_is_counted_and_said_with_its_trace(watch, model, caplog):
    model.error = ZeroDivisionError("by nothing")
    model.go.set()
    watch.finished(PROMPT, (4, 5), greedy(), 0.15)
    await settle(watch)
    assert watch.guard.stats()["skipped"]["failed"] == 1
    assert caplog.records[-1].exc_info[0] is ZeroDivisionError


async def test_an_answer_that_reused_nothing_is_not_compared(watch, model):
    watch.finished(PROMPT, (4, 5), greedy(), 0.15, reused=False)
    assert watch.guard.stats()["skipped"]["nothing_reused"] == 1
    assert model.sent == []


async def test_closing_ends_what_is_being_compared(watch, model):
    watch.finished(PROMPT, (4, 5), greedy(), 0.15)
    await asyncio.sleep(0)
    await watch.close()
    assert watch.guard.stats()["samples"] == 0
    assert watch._task is None
    await watch.close()
    watch.finished(PROMPT, (4, 5), greedy(), 0.15)  # a stream that ends while the engine closes
    assert watch._task is None
    assert len(model.sent) == 1
    assert watch.guard.stats()["skipped"]["aborted"] == 1


async def test_an_empty_answer_says_nothing(watch, model):
    watch.finished(PROMPT, (), greedy(), 0.15)
    assert watch._task is None
    assert sum(watch.guard.stats()["skipped"].values()) == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"stop": ["."], "logprobs": 3, "seed": 1}, None),
        ({"temperature": 0.7}, Skipped.SAMPLED),
        ({"structured_outputs": {"json": {"type": "object"}}}, Skipped.CONSTRAINED),
        ({"logit_bias": {3: 1.0}}, Skipped.CONSTRAINED),
        ({"bad_words": ["no"]}, Skipped.CONSTRAINED),
        ({"repetition_penalty": 1.1}, Skipped.CONSTRAINED),
        ({"presence_penalty": 0.5}, Skipped.CONSTRAINED),
        ({"min_tokens": 2}, Skipped.CONSTRAINED),
        ({"extra_args": {"processor": 1}}, Skipped.CONSTRAINED),
        ({"extra_args": {}}, None),
    ],
)
def test_what_cannot_consist_of_the_most_likely_tokens(options, reason):
    assert not_comparable(greedy(**options)) == reason
