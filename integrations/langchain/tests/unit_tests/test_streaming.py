"""Streams: real deltas that add up to the whole, with and without calls, and what happens when nobody reads on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from langchain_cachecraft import ChatCachecraft
from langchain_core.messages import AIMessage, AIMessageChunk, message_chunk_to_message
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate

from cachecraft_rag.testing import FakeEngine
from cachecraft_rag.testing.fake_words import words

TEXT = "a b  c\n\nd "
CALL = '<tool_call>\n{"name": "look", "arguments": {"q": "é"}}\n</tool_call>'
LOOK = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}


def summed(pieces: Iterable[AIMessageChunk]) -> AIMessage:
    first, *others = pieces
    message = message_chunk_to_message(sum(others, start=first))
    assert isinstance(message, AIMessage)
    return message


async def collected(stream: AsyncIterator[Any]) -> list[Any]:
    return [piece async for piece in stream]


def comparable(message: AIMessage) -> dict[str, Any]:
    """All but ids, which are drawn for each answer."""
    report = dict(message.response_metadata["cachecraft"])
    report.pop("request_id", None)
    return {
        "content": message.content,
        "usage": message.usage_metadata,
        "metadata": {**message.response_metadata, "cachecraft": report},
        "calls": [(call["name"], call["args"]) for call in message.tool_calls],
        "ids": [len(call["id"] or "") for call in message.tool_calls],
        "invalid": len(message.invalid_tool_calls),
    }


@pytest.mark.parametrize(
    "text", [TEXT, f"Let me see. {CALL}", CALL, f"{CALL}\n{CALL}", f"a {CALL} b", f"a {CALL[:30]}"]
)
@pytest.mark.parametrize("tools", [[], [LOOK]])
async def test_pieces_add_up_to_the_whole(text: str, tools: list[Any]) -> None:
    llm = ChatCachecraft(engine=FakeEngine(text))
    model = llm.bind_tools(tools) if tools else llm
    whole = model.invoke("hi")
    pieces = list(model.stream("hi"))
    assert comparable(summed(pieces)) == comparable(whole)
    assert comparable(summed(await collected(model.astream("hi")))) == comparable(whole)
    assert comparable(await model.ainvoke("hi")) == comparable(whole)
    assert [piece.chunk_position for piece in pieces] == [None] * (len(pieces) - 1) + ["last"]
    assert sum(piece.usage_metadata is not None for piece in pieces) == 1
    if not tools:
        assert whole.content == text
        assert [piece.text for piece in pieces if piece.text] == words(text)


@pytest.mark.parametrize("text", [TEXT, f"Let me see. {CALL}", f"{CALL}\n{CALL}"])
async def test_output_version_v1(text: str) -> None:
    model = ChatCachecraft(engine=FakeEngine(text), output_version="v1").bind_tools([LOOK])
    whole = model.invoke("hi")
    streamed = summed(model.stream("hi"))

    def blocks(message: AIMessage) -> list[Any]:
        return [
            {name: value for name, value in block.items() if name not in ("id", "index")}
            for block in message.content_blocks
        ]

    assert blocks(streamed) == blocks(whole)
    assert blocks(summed(await collected(model.astream("hi")))) == blocks(whole)


async def test_the_event_protocol_gives_the_same(llm: ChatCachecraft) -> None:
    model = ChatCachecraft(engine=FakeEngine(f"Let me see. {CALL}")).bind_tools([LOOK])
    whole = model.invoke("hi")
    streams = [model.stream_events("hi", version="v3").output]
    streams.append(await (await model.astream_events("hi", version="v3")).output)
    for message in streams:
        assert message.text == whole.text
        assert [call["args"] for call in message.tool_calls] == [{"q": "é"}]
        assert message.usage_metadata == whole.usage_metadata
        assert message.response_metadata["cachecraft"] == whole.response_metadata["cachecraft"]


def test_a_stream_that_is_left_is_aborted() -> None:
    engine = FakeEngine(TEXT)
    chain = ChatPromptTemplate.from_template("{q}") | ChatCachecraft(engine=engine)
    stream = chain.stream({"q": "hi"})
    next(stream)
    assert engine.running == 1
    stream.close()
    assert (engine.running, engine.aborted) == (0, 1)


async def test_an_async_stream_that_is_left_is_aborted() -> None:
    engine = FakeEngine(TEXT, delay=0.001)
    chain = ChatPromptTemplate.from_template("{q}") | ChatCachecraft(engine=engine) | StrOutputParser()
    stream = chain.astream({"q": "hi"})
    await anext(stream)
    assert engine.running == 1
    await stream.aclose()
    await _until(lambda: engine.running == 0)
    assert engine.aborted == 1


@pytest.mark.parametrize("call", ["ainvoke", "astream", "abatch"])
async def test_a_cancelled_task_is_aborted(call: str) -> None:
    engine = FakeEngine("a b c d e f g h", delay=0.05)
    llm = ChatCachecraft(engine=engine)
    work = {
        "ainvoke": lambda: llm.ainvoke("hi"),
        "astream": lambda: collected(llm.astream("hi")),
        "abatch": lambda: llm.abatch(["hi"]),
    }[call]
    task = asyncio.ensure_future(work())
    await _until(lambda: engine.running == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _until(lambda: engine.running == 0)
    assert engine.aborted == 1


def test_an_error_ends_the_stream() -> None:
    engine = FakeEngine(max_model_len=3)
    with pytest.raises(ValueError, match="context holds 3"):
        list(ChatCachecraft(engine=engine).stream("one two three"))
    assert engine.running == 0


def test_streaming_inside_invoke_for_callbacks() -> None:
    llm = ChatCachecraft(engine=FakeEngine(TEXT), streaming=True)
    assert llm.invoke("hi").content == TEXT


async def _until(condition: Any) -> None:
    while not condition():  # noqa: ASYNC110 - the engine of the test has no event to wait for
        await asyncio.sleep(0.001)
