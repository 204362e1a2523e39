"""Chains over a real model: reuse, concurrency, streams, and what becomes of their blocks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from langchain_cachecraft import (
    ChatCachecraft,
    ChunkIngestor,
    ChunkPromptTemplate,
    aprewarm,
    prewarm,
)
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import BaseModel, Field

from cachecraft_rag import ChunkEngine, ChunkPrompt, chunk_id

PROMPT = ChunkPromptTemplate.from_messages([("human", "{context}\n\n{question}")])
QUESTIONS = ("Who keeps bees?", "Where does Hugo live?", "What does Cleo own?", "Who?")


def report_of(message: Any) -> dict[str, Any]:
    report: dict[str, Any] = message.response_metadata["cachecraft"]
    return report


@pytest.fixture
def chain(llm: ChatCachecraft) -> Runnable[dict[str, Any], Any]:
    return PROMPT | llm


@pytest.fixture
def asked(
    chain: Runnable[dict[str, Any], Any], llm: ChatCachecraft, documents: list[Document]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Eight inputs over prewarmed documents, and their answers, made one by one."""
    prewarm(documents, llm, progress=False)
    orders = ([0, 1], [1, 0], [2, 3, 0], [3], [1, 2], [0, 3], [2], [3, 2, 1])
    inputs = [
        {"context": [documents[number] for number in order], "question": QUESTIONS[turn % 4]}
        for turn, order in enumerate(orders)
    ]
    texts = [chain.invoke(values).text for values in inputs]
    assert len(set(texts)) > 4, "the prompts cannot be told apart by their answers"
    return inputs, texts


def test_permuted_documents_are_all_hits(
    chain: Runnable[dict[str, Any], Any], llm: ChatCachecraft, documents: list[Document]
) -> None:
    assert len(prewarm(documents, llm, progress=False).stored) == 4
    for order in list(itertools.permutations(documents))[::5]:
        message = chain.invoke({"context": list(order), "question": "Who keeps bees?"})
        chunks = report_of(message)["chunks"]
        assert [chunk["outcome"] for chunk in chunks] == ["HIT"] * 4
        assert [chunk["chunk_id"] for chunk in chunks] == [chunk_id(document.page_content) for document in order]
        assert [chunk["document_id"] for chunk in chunks] == [document.metadata["source"] for document in order]
        details = message.usage_metadata["input_token_details"]
        assert details["cache_read"] > 0.6 * message.usage_metadata["input_tokens"]
        assert details["cache_creation"] == 0
        assert sum(details.values()) <= message.usage_metadata["input_tokens"]


def test_a_chain_says_what_the_engine_says(engine: ChunkEngine, llm: ChatCachecraft, documents: list[Document]) -> None:
    prompt = ChunkPrompt.chat([document.page_content for document in documents], "Who keeps bees?")
    direct = engine.generate(prompt, recompute_ratio=1.0, max_tokens=8)
    message = (PROMPT | llm.bind(recompute_ratio=1.0)).invoke({"context": documents, "question": "Who keeps bees?"})
    assert message.text == direct.text
    assert message.usage_metadata["input_tokens"] == direct.prompt_tokens
    plain = (PROMPT | llm.bind(reuse=False)).invoke({"context": documents, "question": "Who keeps bees?"})
    assert plain.text == direct.text
    assert report_of(plain)["chunks"] == []


def test_a_batch_of_twenty_keeps_its_order(chain: Runnable[dict[str, Any], Any], asked: Any) -> None:
    inputs, texts = asked
    numbers = [(7 * number) % 8 for number in range(20)]
    answers = chain.batch([inputs[number] for number in numbers], {"max_concurrency": 20})
    assert [answer.text for answer in answers] == [texts[number] for number in numbers]


async def test_eight_tasks_at_once_with_threads_beside_them(chain: Runnable[dict[str, Any], Any], asked: Any) -> None:
    inputs, texts = asked
    threads = asyncio.gather(*(asyncio.to_thread(chain.invoke, values) for values in inputs))
    tasks = await asyncio.gather(*(chain.ainvoke(values) for values in inputs))
    assert [answer.text for answer in tasks] == texts
    assert [answer.text for answer in await threads] == texts
    for answer, values in zip(tasks, inputs, strict=True):
        assert report_of(answer)["totals"]["hits"] == len(values["context"])


async def test_streams_add_up(chain: Runnable[dict[str, Any], Any], asked: Any) -> None:
    inputs, texts = asked
    pieces = list(chain.stream(inputs[2]))
    assert sum(bool(piece.text) for piece in pieces) > 3
    assert "".join(piece.text for piece in pieces) == texts[2]
    assert report_of(pieces[-1])["totals"]["hits"] == 3
    assert "".join([piece async for piece in (chain | StrOutputParser()).astream(inputs[2])]) == texts[2]


def test_stop(llm: ChatCachecraft, asked: Any) -> None:
    inputs, texts = asked
    stop = texts[2][3:6]
    assert len(stop) == 3
    message = (PROMPT | llm.bind(stop=[stop])).invoke(inputs[2])
    assert message.text == texts[2][: texts[2].index(stop)]
    assert message.response_metadata["stop_reason"] == stop


def test_a_stream_that_is_left_frees_its_blocks(
    llm: ChatCachecraft, documents: list[Document], all_blocks_are_free: Callable[[], None], aborted: list[str]
) -> None:
    endless = PROMPT | llm.bind(max_tokens=1000, ignore_eos=True)
    for document in documents:
        stream = endless.stream({"context": [document], "question": "Who?"})
        next(stream)
        stream.close()
    all_blocks_are_free()
    assert len(set(aborted)) == 4


async def test_an_async_stream_that_is_left_frees_its_blocks(
    llm: ChatCachecraft, documents: list[Document], all_blocks_are_free: Callable[[], None], aborted: list[str]
) -> None:
    endless = PROMPT | llm.bind(max_tokens=1000, ignore_eos=True) | StrOutputParser()
    for document in documents:
        stream = endless.astream({"context": [document], "question": "Who?"})
        await anext(stream)
        await stream.aclose()
    await asyncio.to_thread(all_blocks_are_free)
    assert len(set(aborted)) == 4


async def test_cancelled_tasks_free_their_blocks(
    llm: ChatCachecraft, documents: list[Document], all_blocks_are_free: Callable[[], None], aborted: list[str]
) -> None:
    endless = PROMPT | llm.bind(max_tokens=1000, ignore_eos=True)
    tasks = [
        asyncio.ensure_future(endless.ainvoke({"context": [document], "question": "Who?"})) for document in documents
    ]
    await asyncio.sleep(0.5)
    for task in tasks:
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in ended)
    await asyncio.to_thread(all_blocks_are_free)
    assert len(set(aborted)) == 4


async def test_an_unknown_keyword_is_named_and_the_engine_goes_on(llm: ChatCachecraft) -> None:
    for call in (lambda: llm.invoke("hi", temprature=1), lambda: llm.invoke("hi", n=2)):
        with pytest.raises(ValueError, match=r"temprature|n must be 1"):
            call()
    with pytest.raises(ValueError, match="temprature"):
        await llm.ainvoke("hi", temprature=1)
    assert llm.invoke("hi").text


def test_sampling_reaches_vllm(llm: ChatCachecraft) -> None:
    given = ChatCachecraft(
        engine=llm.engine,
        max_tokens=5,
        temperature=0.9,
        top_p=0.9,
        top_k=20,
        min_p=0.01,
        seed=1,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        repetition_penalty=1.1,
    )
    first = given.invoke("Tell me a story.", logprobs=2)
    assert first.text == given.invoke("Tell me a story.").text
    assert first.usage_metadata["output_tokens"] == len(first.response_metadata["logprobs"]["content"]) == 5
    assert first.response_metadata["finish_reason"] == "length"
    assert first.text != given.invoke("Tell me a story.", temperature=0).text


def test_tokens_are_those_of_the_model(engine: ChunkEngine, llm: ChatCachecraft, documents: list[Document]) -> None:
    assert llm.get_num_tokens("Who keeps bees?") == engine.tokenizer.count("Who keeps bees?")
    messages = PROMPT.format_messages(context=documents, question="Who?")
    assert llm.get_num_tokens_from_messages(messages) == llm.invoke(messages).usage_metadata["input_tokens"]


class Owner(BaseModel):
    """Who owns something."""

    name: str = Field(max_length=12)
    year: int = Field(ge=1900, le=1999)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_schema_over_reused_chunks(llm: ChatCachecraft, documents: list[Document], method: Any) -> None:
    prewarm(documents, llm, progress=False)
    model = ChatCachecraft(engine=llm.engine, max_tokens=60).with_structured_output(
        Owner, method=method, include_raw=True
    )
    made = model.invoke(PROMPT.invoke({"context": documents[::-1], "question": "Who owns a glass boat?"}))
    assert isinstance(made["parsed"], Owner), made
    assert report_of(made["raw"])["totals"]["hits"] == 4


@tool(response_format="content_and_artifact")
def look_up(word: str) -> tuple[str, list[Document]]:
    """Looks a word up."""
    raise AssertionError("the test answers in its place")


def test_documents_of_a_tool_are_hits(llm: ChatCachecraft, documents: list[Document]) -> None:
    prewarm(documents, llm, progress=False)
    model = ChatCachecraft(engine=llm.engine, max_tokens=60)
    question = HumanMessage("Look up bees.")
    call = model.bind_tools([look_up], tool_choice="any").invoke([question])
    content = "\n\n".join(document.page_content for document in documents)
    result = {"role": "tool", "content": content, "tool_call_id": call.tool_calls[0]["id"], "artifact": documents}
    answer = model.bind_tools([look_up], tool_choice="none").invoke([question, call, result])
    assert report_of(answer)["totals"]["hits"] == 4


async def test_ingestion_and_what_is_gone(engine: ChunkEngine, llm: ChatCachecraft, documents: list[Document]) -> None:
    ingestor = ChunkIngestor(InMemoryVectorStore(DeterministicFakeEmbedding(size=8)), llm)
    first = ingestor.ingest(documents, progress=False)
    assert first.prewarm is not None
    assert len(first.prewarm.stored) == 4
    before = engine.stats()["used_bytes"]
    again = await ingestor.aingest(documents)
    assert again.prewarm is not None
    assert (again.prewarm.stored, len(again.prewarm.present), again.skipped) == ((), 4, 4)
    gone = await ingestor.aingest(documents[1:], cleanup="full")
    assert gone.dropped == (chunk_id(documents[0].page_content),)
    assert engine.stats()["used_bytes"] < before
    message = llm.invoke(PROMPT.invoke({"context": documents, "question": "Who?"}))
    assert [chunk["outcome"] for chunk in report_of(message)["chunks"]] == ["MISS", "HIT", "HIT", "HIT"]
    assert len((await aprewarm(documents[1:], llm)).present) == 3
