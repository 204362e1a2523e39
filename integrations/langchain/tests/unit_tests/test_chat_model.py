"""Parameters, keywords, engines, counters."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from langchain_cachecraft import ChatCachecraft, ChunkPromptTemplate
from langchain_core.caches import InMemoryCache
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import ConfigurableField
from pydantic import ValidationError

from cachecraft_rag.answer import Answer
from cachecraft_rag.errors import EngineClosed, InvalidInput
from cachecraft_rag.report import RequestReport
from cachecraft_rag.testing import FakeEngine

PROMPT = ChunkPromptTemplate.from_template("{context}\n\n{question}")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """Engines that were started, in place of real ones."""
    engines: list[FakeEngine] = []

    def start(config: Any) -> FakeEngine:
        engines.append(FakeEngine(model_name=config.model))
        threading.Event().wait(0.05)  # a real start lets other threads come in between
        return engines[-1]

    monkeypatch.setattr("cachecraft_rag.engine.ChunkEngine", start)
    return engines


def options_of(engine: FakeEngine) -> dict[str, Any]:
    return dict(engine.requests[-1].options)


def test_every_parameter_reaches_the_engine(engine: FakeEngine) -> None:
    given = {
        "temperature": 0.5,
        "max_tokens": 7,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 3,
        "frequency_penalty": 0.1,
        "presence_penalty": 0.2,
        "repetition_penalty": 1.1,
        "policy": "random",
        "recompute_ratio": 0.3,
        "namespace": "tenant",
    }
    ChatCachecraft(engine=engine, stop=["x"], **given).invoke("hi")
    assert options_of(engine) == {**given, "stop": ["x"]}


def test_what_is_not_given_is_left_to_the_engine(engine: FakeEngine) -> None:
    ChatCachecraft(engine=engine).invoke("hi")
    assert options_of(engine) == {}


def test_keywords_of_a_call_win(engine: FakeEngine) -> None:
    llm = ChatCachecraft(engine=engine, temperature=0.5, max_tokens=7)
    llm.bind(temperature=0.1).invoke("hi", top_k=3)
    assert options_of(engine) == {"temperature": 0.1, "max_tokens": 7, "top_k": 3}
    llm.invoke("hi", recompute_ratio=1.0, reuse=False, model="fake")
    assert options_of(engine)["reuse"] is False


@pytest.mark.parametrize("how", ["constructor", "bind", "invoke", "text"])
def test_stop(how: str) -> None:
    stop: Any = "c" if how == "text" else ["c"]
    llm = ChatCachecraft(engine=FakeEngine("a b c d"), stop=stop if how in ("constructor", "text") else ["b"])
    if how == "bind":
        answer = llm.bind(stop=stop).invoke("hi")
    else:
        answer = llm.invoke("hi", **({"stop": stop} if how == "invoke" else {}))
    assert answer.text == "a b "
    assert answer.response_metadata["stop_reason"] == "c"
    assert "".join(piece.text for piece in llm.stream("hi", stop=stop)) == "a b "


@pytest.mark.parametrize(
    "call",
    [
        lambda llm: llm.invoke("hi", temprature=1),
        lambda llm: llm.bind(temprature=1).invoke("hi"),
        lambda llm: list(llm.stream("hi", temprature=1)),
    ],
)
def test_an_unknown_keyword_is_named(llm: ChatCachecraft, call: Any) -> None:
    with pytest.raises(InvalidInput, match="temprature"):
        call(llm)


def test_an_unknown_parameter_is_named(engine: FakeEngine) -> None:
    with pytest.raises(ValidationError, match="'temprature'"):
        ChatCachecraft(engine=engine, temprature=1)  # type: ignore[call-arg]


def test_another_model_is_refused(llm: ChatCachecraft, engine: FakeEngine) -> None:
    with pytest.raises(InvalidInput, match=r"'other'.*'fake'"):
        llm.invoke("hi", model="other")
    with pytest.raises(ValidationError, match="'other' is not what the engine runs"):
        ChatCachecraft(model="other", engine=engine)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({}, "give model="),
        ({"model": "m", "base_url": "http://x"}, r"'http://x'.*not supported yet"),
        ({"engine": FakeEngine(), "engine_options": {"dtype": "float32"}}, "cannot change an engine that runs"),
        ({"model": "m", "engine_options": {"dtyp": "float32"}}, "dtyp"),
        ({"model": "m", "engine_options": {"dtype": "float3"}}, "float3"),
        ({"engine": "m"}, "Engine"),
    ],
)
def test_what_cannot_be_made_says_why(given: dict[str, Any], error: str) -> None:
    with pytest.raises(ValidationError, match=error):
        ChatCachecraft(**given)


def test_the_engine_is_made_once_by_the_first_call(made: list[FakeEngine]) -> None:
    llm = ChatCachecraft(model="m", engine_options={"max_model_len": 64})
    copies = [llm.bind(max_tokens=5), llm.model_copy(), llm.configurable_fields(seed=ConfigurableField("seed"))]
    assert made == []
    threads = [threading.Thread(target=copy.invoke, args=("hi",)) for copy in [llm, *copies] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    copies[-1].with_config(configurable={"seed": 3}).invoke("hi")
    assert len(made) == 1
    assert len(made[0].requests) == 13
    assert llm.started_engine is made[0]


async def test_the_engine_is_made_once_by_tasks_and_the_loop_goes_on(made: list[FakeEngine]) -> None:
    llm = ChatCachecraft(model="m")
    answers = asyncio.gather(*(llm.ainvoke("hi") for _ in range(8)))
    turns = 0
    while not answers.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 3
    assert len(made) == 1
    assert [answer.text for answer in await answers] == ["You said: hi"] * 8


def test_a_copy_for_another_engine_is_refused(made: list[FakeEngine]) -> None:
    llm = ChatCachecraft(model="m").configurable_fields(model=ConfigurableField("model"))
    with pytest.raises(ValidationError, match="another engine"):
        llm.with_config(configurable={"model": "n"}).invoke("hi")
    assert made == []


def test_close_ends_what_was_made_here_and_nothing_else(made: list[FakeEngine], engine: FakeEngine) -> None:
    with ChatCachecraft(engine=engine) as given:
        given.invoke("hi")
    assert not engine.closed
    with ChatCachecraft(model="m") as llm:
        llm.invoke("hi")
    assert made[0].closed
    llm.close()
    with pytest.raises(EngineClosed, match="closed"):
        llm.invoke("hi")
    ChatCachecraft(model="m").close()
    assert len(made) == 1


async def test_aclose(made: list[FakeEngine]) -> None:
    async with ChatCachecraft(model="m") as llm:
        await llm.ainvoke("hi")
    assert made[0].closed


def test_the_report_and_the_counters(llm: ChatCachecraft, documents: list[Document]) -> None:
    prompt = PROMPT.invoke({"context": documents, "question": "Who?"})
    first, second = llm.invoke(prompt), llm.invoke(prompt, recompute_ratio=0.5)
    for answer, outcome in ((first, "MISS"), (second, "HIT")):
        report = RequestReport.from_dict(answer.response_metadata["cachecraft"])
        assert [chunk.outcome for chunk in report.chunks] == [outcome] * 3
        assert [chunk.document_id for chunk in report.chunks] == ["bees", "harbour", "ferry"]
        usage = answer.usage_metadata
        assert usage is not None
        assert sum(usage["input_token_details"].values()) <= usage["input_tokens"]  # type: ignore[arg-type]
    assert first.usage_metadata["input_token_details"]["cache_creation"] > 20
    assert first.usage_metadata["input_token_details"]["cache_read"] == 0
    assert second.usage_metadata["input_token_details"]["cache_creation"] == 0
    assert second.usage_metadata["input_token_details"]["recomputed"] > 5  # type: ignore[typeddict-item]
    assert second.usage_metadata["input_token_details"]["cache_read"] > 5


def test_a_wrong_id_is_said_in_the_metadata(llm: ChatCachecraft, documents: list[Document]) -> None:
    [message] = PROMPT.format_messages(context=documents[:1], question="Who?")
    message.content[0]["text"] = "Something else."
    metadata = llm.invoke([message]).response_metadata["cachecraft"]
    assert "sent as plain text" in metadata["warnings"][0]
    assert metadata["chunks"] == []
    *_, last = llm.stream([message])
    assert last.response_metadata["cachecraft"]["warnings"] == metadata["warnings"]


def test_tokens_are_counted_by_the_engine(llm: ChatCachecraft, engine: FakeEngine, documents: list[Document]) -> None:
    assert llm.get_num_tokens("one two three") == 3
    messages = PROMPT.format_messages(context=documents, question="Who?")
    assert llm.get_num_tokens_from_messages(messages) == llm.invoke(messages).usage_metadata["input_tokens"]
    tool = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
    assert llm.get_num_tokens_from_messages(messages, [tool]) > llm.get_num_tokens_from_messages(messages) + 50
    with pytest.raises(NotImplementedError, match="get_num_tokens"):
        llm.get_token_ids("x")
    assert ChatCachecraft(engine=engine, custom_get_token_ids=lambda text: [len(text)]).get_token_ids("xy") == [2]


def test_langchains_cache_tells_models_ratios_and_prompts_apart(engine: FakeEngine, documents: list[Document]) -> None:
    llm = ChatCachecraft(engine=engine, cache=InMemoryCache())
    for _ in range(2):
        llm.invoke("hi")
    assert len(engine.requests) == 1
    llm.model_copy(update={"recompute_ratio": 1.0}).invoke("hi")
    assert len(engine.requests) == 2


def test_logprobs_are_in_the_metadata(engine: FakeEngine, llm: ChatCachecraft, monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def __init__(self, decoded_token: str, logprob: float) -> None:
            self.decoded_token, self.logprob = decoded_token, logprob

    answer = Answer("a", (5,), 1, "stop", 0.0, logprobs=({5: Entry("a", -0.5), 6: Entry("b", -1.5)},))
    monkeypatch.setattr(engine, "generate", lambda prompt, **options: answer)
    assert llm.invoke("hi", logprobs=2).response_metadata["logprobs"]["content"] == [
        {
            "token": "a",
            "logprob": -0.5,
            "top_logprobs": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}],
        }
    ]


def test_tracers_are_told(engine: FakeEngine) -> None:
    llm = ChatCachecraft(engine=engine, stop="x", max_tokens=3)
    assert llm._get_ls_params() == {
        "ls_provider": "cachecraft",
        "ls_model_name": "fake",
        "ls_model_type": "chat",
        "ls_max_tokens": 3,
        "ls_stop": ["x"],
    }
    assert llm._identifying_params["model"] == "fake"


def test_batch_of_twenty_keeps_its_order(llm: ChatCachecraft) -> None:
    answers = llm.batch([f"number {number}" for number in range(20)])
    assert [answer.text for answer in answers] == [f"You said: number {number}" for number in range(20)]


async def test_threads_and_tasks_together() -> None:
    llm = ChatCachecraft(engine=FakeEngine(delay=0.005))
    threads = asyncio.gather(*(asyncio.to_thread(llm.invoke, f"thread {number}") for number in range(8)))
    tasks = await asyncio.gather(*(llm.ainvoke(f"task {number}") for number in range(8)))
    assert [answer.text for answer in tasks] == [f"You said: task {number}" for number in range(8)]
    assert [answer.text for answer in await threads] == [f"You said: thread {number}" for number in range(8)]


async def test_ainvoke_does_not_block_the_loop() -> None:
    task = asyncio.ensure_future(ChatCachecraft(engine=FakeEngine("a b c", delay=0.02)).ainvoke("hi"))
    turns = 0
    while not task.done():
        await asyncio.sleep(0.001)
        turns += 1
    assert turns > 5
    assert (await task).text == "a b c"


def test_an_empty_conversation_is_refused(llm: ChatCachecraft) -> None:
    with pytest.raises(InvalidInput, match="empty"):
        llm.invoke([])


def test_a_conversation_goes_on(llm: ChatCachecraft, engine: FakeEngine) -> None:
    answer = llm.invoke([HumanMessage("one"), AIMessage("two"), HumanMessage("three")])
    assert answer.text == "You said: three"
    assert [message.role for message in engine.requests[-1].prompt.messages] == ["user", "assistant", "user"]
