"""Answers bound to a schema, and tool calls, over reused chunks."""

import json

import pytest

from cachecraft_rag import ChunkEngine, ChunkPrompt
from cachecraft_rag.tools import CallReader, Tool, constraint, instructions

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "year": {"type": "integer"}},
    "required": ["name", "year"],
    "additionalProperties": False,
}
ADD = Tool("add", "Adds two numbers.", {**SCHEMA, "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]})
LOOK = Tool("look_up", "Looks a word up.", {**SCHEMA, "properties": {"w": {"enum": ["x", "y"]}}, "required": ["w"]})


def test_json_of_a_schema(engine: ChunkEngine, passages, outcomes):
    chunks = passages(3)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks[::-1], "Who owns what, and since which year? Answer in JSON.")
    answer = engine.generate(prompt, structured_outputs={"json": SCHEMA, "disable_any_whitespace": True}, max_tokens=80)
    made = json.loads(answer.text)
    assert set(made) == {"name", "year"}
    assert isinstance(made["year"], int)
    assert outcomes(answer) == ["HIT"] * 3


@pytest.mark.parametrize(("choice", "names"), [("any", {"add", "look_up"}), ("look_up", {"look_up"})])
def test_a_call_that_is_asked_for(engine: ChunkEngine, passages, choice, names):
    tools = [ADD, LOOK]
    prompt = ChunkPrompt.from_messages(
        [
            {"role": "system", "content": instructions(tools)},
            {"role": "user", "content": [*passages(2), "What is 1 + 2?"]},
        ]
    )
    reader = CallReader(tools)
    shown = "".join(
        reader.feed(delta.text)
        for delta in engine.stream(prompt, structured_outputs=constraint(tools, choice), max_tokens=60)
    )
    assert shown + reader.finish() == ""
    assert reader.invalid == []
    [call] = reader.calls
    assert call.name in names
    assert call.arguments in ({"a": 1}, {"a": 2}, {"w": "x"}, {"w": "y"})


def test_a_call_that_is_allowed_leaves_text_alone(engine: ChunkEngine, passages):
    prompt = ChunkPrompt.chat(passages(2), "Who lives at the harbour?")
    free = engine.generate(prompt, recompute_ratio=1.0, max_tokens=8).text
    for parallel in (True, False):
        bound = constraint([ADD, LOOK], parallel=parallel)
        answer = engine.generate(prompt, recompute_ratio=1.0, max_tokens=8, structured_outputs=bound)
        assert answer.text == free
