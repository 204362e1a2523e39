"""Every method of the LLM, on the fake engine."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest
from llama_index.core.base.llms.types import ChatMessage, CitableBlock, ImageBlock, MessageRole, TextBlock
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler, TokenCountingHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.cachecraft import Cachecraft

from cachecraft_rag import chunk_id
from cachecraft_rag.errors import EngineClosed, InvalidInput
from cachecraft_rag.testing import FakeEngine

QUESTION = [ChatMessage(content="one two three four")]
ANSWER = "You said: one two three four"
STREAMS = ["stream_chat", "stream_complete"]
ALL = ["chat", "complete", *STREAMS, "achat", "acomplete", "astream_chat", "astream_complete"]


def with_chunks(*texts: str, question: str = "Why?") -> list[ChatMessage]:
    blocks = [CitableBlock(title="doc", source=chunk_id(text), content=text) for text in texts]
    return [ChatMessage(blocks=[*blocks, TextBlock(text=question)])]


async def responses(llm: Cachecraft, method: str, asked=QUESTION, **kwargs) -> list:
    """All responses of any of the eight methods."""
    given = asked if "chat" in method else asked[0].content
    result = getattr(llm, method)(given, **kwargs)
    if method.startswith("a"):
        result = await result
    if "stream" not in method:
        return [result]
    return [response async for response in result] if method.startswith("a") else list(result)


def text_of(response) -> str:
    return response.message.content if hasattr(response, "message") else response.text


@pytest.mark.parametrize("method", ALL)
async def test_every_method_answers_and_counts(llm, method):
    found = await responses(llm, method)
    assert text_of(found[-1]) == ANSWER
    if "stream" in method:
        assert len(found) > 3
        assert "".join(response.delta for response in found) == ANSWER
        for number, response in enumerate(found):
            assert text_of(response) == "".join(earlier.delta for earlier in found[: number + 1])
        assert all(response.raw is None for response in found[:-1])
    else:
        assert found[-1].delta is None
    assert found[-1].raw["usage"] == {
        "prompt_tokens": 6,
        "completion_tokens": 6,
        "total_tokens": 12,
        "cache_read": 0,
        "cache_creation": 0,
        "recomputed": 0,
    }
    assert found[-1].raw["finish_reason"] == "stop"
    assert found[-1].raw["model"] == "fake"
    assert found[-1].additional_kwargs["report"] is None
    found[-1].model_dump_json()


@pytest.mark.parametrize("method", ["chat", "stream_chat", "achat", "astream_chat"])
async def test_chunks_are_reused_wherever_they_stand(llm, method):
    await responses(llm, method, with_chunks("one two", "three four five"))
    response = (await responses(llm, method, with_chunks("three four five", "one two")))[-1]
    report = response.additional_kwargs["report"]
    assert (report.hits, report.misses) == (2, 0)
    assert [chunk.document_id for chunk in report.chunks] == ["doc", "doc"]
    assert response.raw["report"] == report.to_dict()
    usage = response.raw["usage"]
    assert usage["cache_read"] + usage["recomputed"] == sum(chunk.tokens for chunk in report.chunks)
    assert usage["cache_read"] == report.reused_tokens
    response.model_dump_json()


def test_a_chunk_with_another_texts_id_is_said_to_be_text(llm):
    block = CitableBlock(title="doc", source="forged", content="one two")
    response = llm.chat([ChatMessage(blocks=[block, TextBlock(text="Why?")])])
    assert response.additional_kwargs["unmatched_chunks"] == ["forged"]
    assert response.additional_kwargs["report"] is None


@pytest.mark.parametrize("method", ALL)
async def test_unknown_keywords_are_named(llm, method):
    with pytest.raises(InvalidInput, match="temprature"):
        await responses(llm, method, temprature=1)


@pytest.mark.parametrize("method", ["chat", "stream_chat", "achat", "astream_chat"])
async def test_unreadable_blocks_are_named(llm, method):
    with pytest.raises(InvalidInput, match="'image'"):
        await responses(llm, method, [ChatMessage(blocks=[ImageBlock(url="http://example.org/x.png")])])


@pytest.mark.parametrize("method", ALL)
async def test_stop_and_max_tokens(engine, method):
    llm = Cachecraft(engine=engine, stop=["four"])
    assert text_of((await responses(llm, method))[-1]) == "You said: one two three "
    assert text_of((await responses(llm, method, stop=["two"]))[-1]) == "You said: one "
    found = await responses(llm, method, max_tokens=2)
    assert text_of(found[-1]) == "You said:"
    assert found[-1].raw["finish_reason"] == "length"


def test_options_reach_the_engine(engine):
    options = {"policy": "first", "recompute_ratio": 0.5, "namespace": "me", "max_tokens": 7, "temperature": 0.5}
    llm = Cachecraft(engine=engine, additional_kwargs={"top_p": 0.9}, **options)
    llm.chat(QUESTION, seed=3, temperature=0.1)
    assert engine.requests[-1].options == {**options, "top_p": 0.9, "seed": 3, "temperature": 0.1}
    Cachecraft(engine=engine).chat(QUESTION)
    assert engine.requests[-1].options == {"max_tokens": 256, "temperature": 0.0}


def test_complete_is_one_turn_of_the_user_or_the_text_itself(llm, engine):
    llm.complete("Hi")
    assert [message.role for message in engine.requests[-1].prompt.messages] == ["user"]
    llm.complete("Hi", formatted=True)
    assert not engine.requests[-1].prompt.is_chat


def test_predict_sends_the_template_once_and_the_system_prompt(engine):
    llm = Cachecraft(engine=engine, system_prompt="Be brief.")
    assert llm.predict(PromptTemplate("Say {word}"), word="a") == "You said: Say a"
    assert [(m.role, m.parts[0].text) for m in engine.requests[-1].prompt.messages] == [
        ("system", "Be brief."),
        ("user", "Say a"),
    ]


async def test_predictions(llm):
    prompt = PromptTemplate("{a} two")
    assert await llm.apredict(prompt, a="one") == "You said: one two"
    assert "".join(llm.stream(prompt, a="one")) == "You said: one two"
    assert "".join([token async for token in await llm.astream(prompt, a="one")]) == "You said: one two"


async def test_achat_does_not_block_the_loop():
    llm = Cachecraft(engine=FakeEngine(delay=0.01))
    steps = 0

    async def other() -> None:
        nonlocal steps
        while True:
            steps += 1
            await asyncio.sleep(0)

    for method in ("achat", "acomplete", "astream_chat", "astream_complete"):
        steps, task = 0, asyncio.create_task(other())
        await responses(llm, method)
        assert steps > 6, method  # else it ran only before and behind the call
        task.cancel()


async def test_many_at_once_keep_their_order(llm):
    asked = [[ChatMessage(content=f"number {number}")] for number in range(20)]
    found = await asyncio.gather(*(llm.achat(messages) for messages in asked))
    assert [response.message.content for response in found] == [f"You said: number {number}" for number in range(20)]


@pytest.mark.parametrize("handlers", [[], [LlamaDebugHandler(print_trace_on_end=False)]])
@pytest.mark.parametrize("method", STREAMS)
def test_an_abandoned_stream_ends_its_request(engine, method, handlers):
    llm = Cachecraft(engine=engine, callback_manager=CallbackManager(handlers))
    stream = getattr(llm, method)("a b c" if "complete" in method else QUESTION)
    next(stream)
    assert engine.running == 1
    stream.close()
    assert (engine.running, engine.aborted) == (0, 1)


@pytest.mark.parametrize("handlers", [[], [LlamaDebugHandler(print_trace_on_end=False)]])
@pytest.mark.parametrize("method", ["astream_chat", "astream_complete"])
async def test_an_abandoned_async_stream_ends_its_request(engine, method, handlers):
    llm = Cachecraft(engine=engine, callback_manager=CallbackManager(handlers))
    stream = await getattr(llm, method)("a b c" if "complete" in method else QUESTION)
    await anext(stream)
    assert engine.running == 1
    await stream.aclose()
    assert (engine.running, engine.aborted) == (0, 1)


@pytest.mark.parametrize("method", ["achat", "acomplete", "astream_chat", "astream_complete"])
async def test_a_cancelled_task_ends_its_request(method):
    engine = FakeEngine(delay=60)
    task = asyncio.create_task(responses(Cachecraft(engine=engine), method))
    for _ in range(10):
        await asyncio.sleep(0)
    assert engine.running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (engine.running, engine.aborted) == (0, 1)


@pytest.mark.parametrize("method", ALL)
async def test_token_counting_has_the_engines_counts(engine, method):
    counter = TokenCountingHandler(tokenizer=lambda text: pytest.fail("counted by itself"))
    llm = Cachecraft(engine=engine, callback_manager=CallbackManager([counter]))
    await responses(llm, method)
    assert (counter.prompt_llm_token_count, counter.completion_llm_token_count) == (6, 6)


@pytest.mark.parametrize("method", ALL)
async def test_callbacks_and_events(engine, method):
    seen = []

    class Handler(BaseEventHandler):
        def handle(self, event, **kwargs):
            seen.append(event.class_name())

    debug = LlamaDebugHandler(print_trace_on_end=False)
    dispatcher, handler = get_dispatcher(), Handler()
    dispatcher.add_event_handler(handler)
    try:
        await responses(Cachecraft(engine=engine, callback_manager=CallbackManager([debug])), method)
    finally:
        dispatcher.event_handlers.remove(handler)
    kind = "Chat" if "chat" in method else "Completion"
    assert seen[0] == f"LLM{kind}StartEvent"
    assert seen[-1] == f"LLM{kind}EndEvent"
    assert (f"LLM{kind}InProgressEvent" in seen) == ("stream" in method)
    assert len(debug.get_event_pairs(CBEventType.LLM)) == 1


def test_metadata(llm):
    assert llm.metadata.context_window == 8192
    assert llm.metadata.num_output == 256
    assert llm.metadata.is_chat_model
    assert llm.metadata.is_function_calling_model
    assert llm.metadata.model_name == llm.model == "fake"
    assert llm.class_name() == "Cachecraft"


def test_count_tokens_is_the_engines(llm, engine):
    messages = with_chunks("one two", "three")
    usage = llm.chat(messages).raw["usage"]
    assert llm.count_tokens(messages) == usage["prompt_tokens"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "give model="),
        ({"model": "x", "modell": 1}, "modell"),
        ({"model": "x", "max_tokens": 0}, "max_tokens"),
        ({"model": "x", "recompute_ratio": 2}, "recompute_ratio"),
        ({"model": "x", "engine_options": {"dtyp": "float32"}}, "dtyp"),
        ({"model": "x", "engine_options": {"dtype": "float8"}}, "float8"),
        ({"model": "x", "engine": FakeEngine()}, "either engine="),
        ({"engine": "vllm"}, "'vllm' is no engine"),
        ({"model": "x", "messages_to_prompt": str}, "messages_to_prompt"),
    ],
)
def test_constructor_errors_name_what_is_wrong(options, named):
    with pytest.raises(ValueError, match=named):
        Cachecraft(**options)


@pytest.fixture
def started(monkeypatch) -> list[FakeEngine]:
    """The engines that were started lazily."""
    engines: list[FakeEngine] = []

    def start(config):
        engines.append(FakeEngine(model_name=config.model, max_model_len=config.max_model_len or 100))
        return engines[-1]

    monkeypatch.setattr("cachecraft_rag.engine.ChunkEngine", start)
    return engines


def test_the_engine_starts_once_when_it_is_needed(started):
    llm = Cachecraft("model", engine_options={"max_model_len": 200})
    assert llm.metadata.context_window == 200
    assert not started
    llm.chat(QUESTION)
    llm.complete("Hi")
    assert len(started) == 1
    llm.close()
    llm.close()
    assert started[0].closed
    with pytest.raises(EngineClosed):
        llm.chat(QUESTION)


def test_the_models_config_knows_the_context_length_before_the_engine_runs(started, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama", "max_position_embeddings": 512}')
    llm = Cachecraft(str(tmp_path))
    assert llm.metadata.context_window == 512
    assert not started
    llm.chat(QUESTION)
    assert llm.metadata.context_window == 100


async def test_concurrent_first_calls_start_one_engine(started):
    llm = Cachecraft("model")
    await asyncio.gather(*(llm.achat(QUESTION) for _ in range(8)), asyncio.to_thread(llm.chat, QUESTION))
    assert len(started) == 1
    await llm.aclose()
    assert started[0].closed
    with pytest.raises(EngineClosed):
        await llm.achat(QUESTION)


def test_a_given_engine_is_not_closed(llm, engine):
    with llm:
        pass
    assert not engine.closed
    assert llm.chat(QUESTION).message.role == MessageRole.ASSISTANT


def test_copies_share_the_engine_and_pickles_are_refused(llm, engine):
    assert copy.deepcopy(llm).engine is engine
    assert copy.copy(llm).engine is engine
    with pytest.raises(InvalidInput, match="another process"):
        pickle.dumps(llm)


def test_to_dict_makes_an_equal_llm():
    llm = Cachecraft("model", max_tokens=3, engine_options={"dtype": "float32"})
    assert Cachecraft.from_dict(llm.to_dict()).to_dict() == llm.to_dict()
