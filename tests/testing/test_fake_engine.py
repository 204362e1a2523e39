"""The fake has the real engine's interface and keeps its promises."""

from __future__ import annotations

import inspect
import json

import pytest

from cachecraft_rag import Chunk, ChunkEngine, ChunkPrompt
from cachecraft_rag.errors import EngineClosed, InvalidInput
from cachecraft_rag.interface import Engine
from cachecraft_rag.testing import FakeEngine
from cachecraft_rag.tools import CallReader, Tool, constraint

PROMPT = ChunkPrompt.chat([Chunk("one two three", "a"), Chunk("four five", "b")], "What is it?")
METHODS = [name for name in vars(Engine) if not name.startswith("_") and callable(getattr(Engine, name))]


@pytest.mark.parametrize("name", METHODS)
def test_real_and_fake_have_the_interface(name):
    def shape(method) -> list[tuple[str, object]]:
        return [(p.name, p.kind) for p in inspect.signature(method).parameters.values()]

    assert shape(getattr(FakeEngine, name)) == shape(getattr(Engine, name)) == shape(getattr(ChunkEngine, name))
    assert inspect.iscoroutinefunction(getattr(FakeEngine, name)) == name.startswith(("agen", "apre", "adel", "aclo"))


def test_the_fake_is_an_engine():
    assert isinstance(FakeEngine(), Engine)
    assert hasattr(ChunkEngine, "model_name")
    assert hasattr(ChunkEngine, "max_model_len")


def test_chunks_are_missed_first_and_hit_later_at_any_place():
    engine = FakeEngine()
    first, second = engine.generate(PROMPT), engine.generate(PROMPT, recompute_ratio=0.5)
    assert (first.report.misses, second.report.hits) == (2, 2)
    assert first.usage.cache_creation == 7
    assert first.usage.cache_read == 0
    usage = second.usage
    assert usage.cache_read + usage.cache_creation + usage.recomputed <= usage.input_tokens == first.prompt_tokens
    assert usage.recomputed > 0


async def test_streams_spell_the_answer_and_count_who_left():
    engine = FakeEngine("a b c d")
    deltas = list(engine.stream(PROMPT))
    assert "".join(delta.text for delta in deltas) == deltas[-1].answer.text == "a b c d"
    assert [d.text async for d in engine.astream(PROMPT)] == [d.text for d in deltas]
    left = engine.stream(PROMPT)
    next(left)
    assert engine.running == 1
    left.close()
    assert (engine.running, engine.aborted) == (0, 1)


def test_stop_and_length():
    engine = FakeEngine("a b c d")
    assert engine.generate(PROMPT, stop=[" c"]).text == "a b"
    cut = engine.generate(PROMPT, max_tokens=1)
    assert (cut.text, cut.finish_reason) == ("a", "length")


def test_prewarm_delete_and_namespaces():
    engine = FakeEngine(min_chunk_tokens=2)
    report = engine.prewarm([Chunk("one two", "a"), Chunk("three four", "b"), Chunk("one two", "b"), Chunk("x")])
    assert len(report.stored) == 2
    assert list(report.refused.values()) == ["its 1 tokens are fewer than min_chunk_tokens=2"]
    assert engine.delete(document_id="b") == [Chunk("three four").id]
    assert engine.generate(ChunkPrompt.chat(["one two"], "?"), namespace="other").report.misses == 1
    assert engine.delete(everything=True) == [Chunk("one two").id]


def test_what_the_real_engine_refuses():
    engine = FakeEngine(max_model_len=8)
    with pytest.raises(InvalidInput, match="wrong"):
        engine.generate(PROMPT, wrong=1)
    with pytest.raises(InvalidInput, match="context holds 8"):
        engine.generate(PROMPT)
    engine.close()
    with pytest.raises(EngineClosed):
        engine.generate(PROMPT)


def test_structured_answers_are_instances():
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "s": {"type": "string"}, "r": {"$ref": "#/$defs/r"}, "o": {}},
        "required": ["n", "s", "r"],
        "$defs": {"r": {"type": "array", "items": {"enum": ["x"]}}},
    }

    def made(question):
        return json.loads(
            FakeEngine().generate(ChunkPrompt.chat(["chunk"], question), structured_outputs={"json": schema}).text
        )

    assert made("take 7") == {"n": 7, "s": "some s", "r": ["x"]}
    assert made("it's 7, isn't it, '你好'?")["s"] == "你好"


@pytest.mark.parametrize("choice", ["auto", "any", "add"])
def test_tools_that_are_offered_are_called(choice):
    tools = [Tool("now"), Tool("add", "", {"type": "object", "properties": {"a": {"type": "integer"}}})]
    prompt = ChunkPrompt.chat(["chunk"], "add 3")
    reader = CallReader(tools)
    reader.feed(FakeEngine().generate(prompt, structured_outputs=constraint(tools, choice)).text)
    assert [(call.name, call.arguments) for call in reader.calls] == [("add", {"a": 3})]
