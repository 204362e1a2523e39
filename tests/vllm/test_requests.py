"""The front end's requests against a fake of vLLM's AsyncLLM: each one handed over ends or is aborted."""

import asyncio
from contextlib import aclosing
from types import SimpleNamespace

import pytest

from cachecraft_rag.vllm.requests import Requests
from cachecraft_rag.vllm.sampling import make_sampling


class FakeLlm:
    """`known`: external ids of requests that neither ended nor were aborted."""

    def __init__(self, steps=3, slow_to_take=False):
        self.known = set()
        self.steps = steps
        self.taken = asyncio.Event()
        self.goes_on = asyncio.Event()
        if not slow_to_take:
            self.goes_on.set()

    async def add_request(self, request_id, prompt, sampling):
        self.known.add(request_id)
        self.taken.set()
        await self.goes_on.wait()
        return Collector(self, request_id)

    async def abort(self, request_id, internal=False):
        self.known -= {known for known in self.known if request_id in (known, f"{known}-internal")}


class Collector:
    def __init__(self, llm, request_id):
        self.request_id = f"{request_id}-internal"
        self._llm, self._external, self._left = llm, request_id, llm.steps

    async def get(self):
        await asyncio.sleep(0.01)
        self._left -= 1
        if self._left == 0:
            self._llm.known.discard(self._external)
        return SimpleNamespace(finished=self._left == 0)


async def outputs(llm):
    requests = Requests(llm, "s")
    async with aclosing(requests.outputs(await requests.enqueue([1, 2, 3], make_sampling(None, {}), None))) as stream:
        async for output in stream:
            yield output


async def test_a_request_that_ends_is_not_aborted():
    llm = FakeLlm()
    assert [output.finished async for output in outputs(llm)] == [False, False, True]
    assert llm.known == set()


async def test_closing_the_outputs_aborts():
    llm = FakeLlm(steps=100)
    stream = outputs(llm)
    await anext(stream)
    assert len(llm.known) == 1
    await stream.aclose()
    assert llm.known == set()


async def test_cancelling_the_reader_aborts():
    llm = FakeLlm(steps=1000)

    async def read():
        async for _ in outputs(llm):
            pass

    task = asyncio.create_task(read())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert llm.known == set()


async def test_cancelled_while_vllm_takes_the_request():
    llm = FakeLlm(steps=1000, slow_to_take=True)
    task = asyncio.create_task(anext(outputs(llm)))
    await llm.taken.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    llm.goes_on.set()
    await asyncio.sleep(0.05)
    assert llm.known == set(), "nobody reads this request, and nobody ends it"


async def test_requests_have_names_of_their_own():
    llm = FakeLlm(steps=1000)
    ours = Requests(llm, "s")
    for _ in range(5):
        await ours.enqueue([1], make_sampling(None, {}), None)
    assert len(llm.known) == 5
