"""Every method on a real model: one template, the engine's own text and counts, nothing left behind."""

from __future__ import annotations

import asyncio
import concurrent.futures

import pytest
from llama_index.core.base.llms.types import ChatMessage, CitableBlock, TextBlock
from llama_index.core.callbacks import CallbackManager, LlamaDebugHandler, TokenCountingHandler
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.cachecraft import Cachecraft
from llama_index.llms.cachecraft.messages import read_messages
from llama_index.llms.cachecraft.nodes import block_of, chunk_of
from pydantic import BaseModel

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.errors import InvalidInput

METHODS = ["chat", "stream_chat", "achat", "astream_chat"]
COMPLETIONS = ["complete", "stream_complete", "acomplete", "astream_complete"]


def asked(nodes, question: str = "Who keeps bees?") -> list[ChatMessage]:
    return [ChatMessage(blocks=[*(block_of(chunk_of(node)) for node in nodes), TextBlock(text=question)])]


async def responses(llm: Cachecraft, method: str, given, **kwargs) -> list:
    result = getattr(llm, method)(given, **kwargs)
    if method.startswith("a"):
        result = await result
    if "stream" not in method:
        return [result]
    return [response async for response in result] if method.startswith("a") else list(result)


def test_the_chat_template_is_applied_once(engine, llm):
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(content="What is the sea?")]
    given = [{"role": message.role.value, "content": message.content} for message in messages]
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(engine.model_name)
    expected = tokenizer.apply_chat_template(given, add_generation_prompt=True, return_dict=False)
    assert list(engine.tokenizer.encode(read_messages(messages).prompt).token_ids) == expected
    assert llm.count_tokens(messages) == len(expected)
    assert llm.chat(messages).raw["usage"]["prompt_tokens"] == len(expected)


@pytest.mark.parametrize("method", METHODS)
async def test_chat_over_chunks(llm, engine, nodes, method, all_blocks_are_free):
    counter = TokenCountingHandler(tokenizer=lambda text: pytest.fail("counted by itself"))
    llm.callback_manager = CallbackManager([counter])
    found = nodes(3)
    engine.prewarm([chunk_of(node) for node in found], progress=False)
    order = [found[2], found[0], found[1]]
    answers = await responses(llm, method, asked(order))
    whole = engine.generate(ChunkPrompt.chat([chunk_of(node) for node in order], "Who keeps bees?"), max_tokens=8)
    assert answers[-1].message.content == whole.text
    if "stream" in method:
        assert len(answers) >= 4
        assert "".join(answer.delta for answer in answers) == whole.text
    report = answers[-1].additional_kwargs["report"]
    assert (report.hits, report.misses, report.refused) == (3, 0, 0)
    usage = answers[-1].raw["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (whole.prompt_tokens, len(whole.token_ids))
    assert usage["recomputed"] == report.recomputed_tokens > 0
    assert usage["cache_read"] > usage["recomputed"]
    assert usage["cache_creation"] == 0
    assert counter.prompt_llm_token_count == usage["prompt_tokens"]
    assert counter.completion_llm_token_count == usage["completion_tokens"]


@pytest.mark.parametrize("method", COMPLETIONS)
async def test_completions(llm, engine, method):
    text = engine.generate(
        ChunkPrompt.from_messages([{"role": "user", "content": "What is the sea?"}]), max_tokens=8
    ).text
    answers = await responses(llm, method, "What is the sea?")
    assert answers[-1].text == text
    if "stream" in method:
        assert "".join(answer.delta for answer in answers) == text
    plain = engine.generate(ChunkPrompt.from_parts(["The sea is"]), max_tokens=8).text
    assert (await responses(llm, method, "The sea is", formatted=True))[-1].text == plain != text


def test_ratio_one_says_what_plain_vllm_says(llm, nodes):
    found = nodes(3)
    llm.chat(asked(found))
    exact = llm.chat(asked(found[::-1]), recompute_ratio=1.0, max_tokens=12)
    plain = llm.chat(asked(found[::-1]), reuse=False, fresh=True, max_tokens=12)
    assert exact.message.content == plain.message.content
    assert exact.additional_kwargs["report"].computed_tokens > 200
    assert plain.additional_kwargs["report"] is None


async def test_achat_does_not_block_the_loop(llm, nodes):
    steps = 0

    async def other() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0.001)

    for method in ("achat", "astream_chat", "acomplete", "astream_complete"):
        steps, task = 0, asyncio.create_task(other())
        await responses(llm, method, asked(nodes(1)) if "chat" in method else "Who?")
        assert steps > 5, method
        task.cancel()


async def test_eight_tasks_and_eight_threads_at_once(llm, nodes, all_blocks_are_free):
    found = nodes(4)
    orders = [asked([found[n % 4], found[(n + 1) % 4]], f"Who is number {n}?") for n in range(8)]
    expected = [llm.chat(messages).message.content for messages in orders]
    expected = [llm.chat(messages).message.content for messages in orders]  # now all chunks are there
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(llm.chat, messages) for messages in orders]
        tasks = await asyncio.gather(*(llm.achat(messages) for messages in orders))
        answers = [await asyncio.wrap_future(thread) for thread in threads]
    assert [answer.message.content for answer in tasks] == expected
    assert [answer.message.content for answer in answers] == expected


ENDLESS = {"max_tokens": 1000, "ignore_eos": True}


@pytest.fixture
def nothing_runs_on(engine, llm, all_blocks_are_free):
    """After a short request, which outlasts an abort, none that would take long is open any more.

    The handler keeps what ended a stream, and with it LlamaIndex's generators: the garbage collector ends no request.
    """
    llm.callback_manager = CallbackManager([LlamaDebugHandler(print_trace_on_end=False)])
    yield
    engine.generate(ChunkPrompt.from_parts(["Hi"]), max_tokens=2)
    assert not engine._client.requests._open


@pytest.mark.parametrize("method", ["stream_chat", "stream_complete"])
def test_abandoned_streams_end_their_requests(llm, engine, nodes, method, nothing_runs_on):
    found = nodes(4)
    engine.prewarm([chunk_of(node) for node in found], progress=False)
    for number in range(3):
        given = asked(found) if "chat" in method else f"Count to {number}."
        stream = getattr(llm, method)(given, **ENDLESS)
        assert next(stream).raw is None
        assert engine._client.requests._open
        stream.close()


@pytest.mark.parametrize("method", ["astream_chat", "astream_complete"])
async def test_abandoned_async_streams_end_their_requests(llm, engine, nodes, method, nothing_runs_on):
    found = nodes(4)
    engine.prewarm([chunk_of(node) for node in found], progress=False)
    for number in range(3):
        given = asked(found) if "chat" in method else f"Count to {number}."
        stream = await getattr(llm, method)(given, **ENDLESS)
        assert (await anext(stream)).raw is None
        assert engine._client.requests._open
        await stream.aclose()


async def test_cancelled_tasks_end_their_requests(llm, engine, nodes, nothing_runs_on):
    found = nodes(4)
    engine.prewarm([chunk_of(node) for node in found], progress=False)
    tasks = [asyncio.create_task(llm.achat(asked(found), **ENDLESS)) for _ in range(2)]
    while len(engine._client.requests._open) < 2:  # noqa: ASYNC110 - the engine has no event for it
        await asyncio.sleep(0.01)
    for task in tasks:
        task.cancel()
    assert all(isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*tasks, return_exceptions=True))


async def test_stop(llm):
    question = [ChatMessage(content="What is the sea?")]
    whole = llm.chat(question, max_tokens=16).message.content
    stop = whole[4:8]
    expected = whole[: whole.index(stop)]
    for method in METHODS:
        assert (await responses(llm, method, question, max_tokens=16, stop=[stop]))[-1].message.content == expected


@pytest.mark.parametrize("method", METHODS)
async def test_wrong_keywords_are_named_and_the_engine_goes_on(llm, method):
    with pytest.raises(InvalidInput, match="temprature"):
        await responses(llm, method, [ChatMessage(content="Hi")], temprature=1)
    with pytest.raises(InvalidInput, match="top_p"):
        await responses(llm, method, [ChatMessage(content="Hi")], top_p=3)
    assert llm.chat([ChatMessage(content="Hi")]).message.content


def test_an_id_that_does_not_fit_never_hits(llm, engine, nodes):
    stored, other = (chunk_of(node) for node in nodes(2))
    engine.prewarm([stored], progress=False)
    forged = CitableBlock(title="", source=stored.id, content=other.text)
    ours = llm.chat([ChatMessage(blocks=[forged, TextBlock(text="Who?")])])
    plain = llm.chat([ChatMessage(content=f"{other.text}\n\nWho?")])
    assert ours.additional_kwargs["unmatched_chunks"] == [stored.id]
    assert ours.message.content == plain.message.content


class Person(BaseModel):
    name: str
    age: int


async def test_structured_predictions(llm):
    prompt = PromptTemplate("{name} is 41 years old.")
    options = {"max_tokens": 60}
    whole = llm.structured_predict(Person, prompt, options, name="Hugo")
    assert isinstance(whole, Person)
    assert await llm.astructured_predict(Person, prompt, options, name="Hugo") == whole
    assert list(llm.stream_structured_predict(Person, prompt, options, name="Hugo"))[-1] == whole
    with pytest.raises(InvalidInput, match="raise max_tokens"):
        llm.structured_predict(Person, prompt, {"max_tokens": 2}, name="Hugo")


def find(name: str) -> str:
    """Finds somebody."""
    return f"{name} is in the garden."


@pytest.mark.parametrize("streaming", [True, False])
def test_tools_that_must_be_called(llm, streaming):
    tools = [FunctionTool.from_defaults(find)]
    options = {"tool_required": True, "max_tokens": 60}
    if streaming:
        *_, response = llm.stream_chat_with_tools(tools, "Find Hugo.", **options)
    else:
        response = llm.chat_with_tools(tools, "Find Hugo.", **options)
    [call] = llm.get_tool_calls_from_response(response)
    assert call.tool_name == "find"
    assert set(call.tool_kwargs) == {"name"}
    result = ChatMessage(role="tool", content=find(**call.tool_kwargs))
    history = [ChatMessage(content="Find Hugo."), response.message, result]
    assert llm.chat_with_tools(tools, chat_history=history).raw["usage"]["prompt_tokens"] > 100
