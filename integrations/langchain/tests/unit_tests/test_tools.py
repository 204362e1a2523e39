"""Tool calling: what is offered, what is asked of the engine, what is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from langchain_cachecraft import ChatCachecraft
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.testing import FakeEngine


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


class Look(BaseModel):
    """Looks a word up."""

    word: str


def layout(engine: FakeEngine) -> dict[str, Any]:
    return json.loads(engine.requests[-1].options["structured_outputs"]["structural_tag"])["format"]


@pytest.mark.parametrize(
    ("choice", "forced", "offered"),
    [
        (None, False, 2),
        ("auto", False, 2),
        ("any", True, 2),
        ("required", True, 2),
        (True, True, 2),
        ("add", True, 1),
        ({"type": "function", "function": {"name": "add"}}, True, 1),
        ({"type": "tool", "name": "add"}, True, 1),
        ({"type": "auto"}, False, 2),
    ],
)
def test_choices(llm: ChatCachecraft, engine: FakeEngine, choice: Any, forced: bool, offered: int) -> None:
    answer = llm.bind_tools([add, Look], tool_choice=choice).invoke('Please "add" 3 and 4.')
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("add", {"a": 3, "b": 4})]
    assert answer.text == ""
    assert (layout(engine)["at_least_one"], len(layout(engine)["tags"])) == (forced, offered)


@pytest.mark.parametrize("choice", ["none", False])
def test_no_tool_may_be_called(llm: ChatCachecraft, engine: FakeEngine, choice: Any) -> None:
    answer = llm.bind_tools([add], tool_choice=choice).invoke("add 3")
    assert answer.tool_calls == []
    assert engine.requests[-1].options == {}
    assert "# Tools" not in engine.requests[-1].prompt.text


def test_the_model_is_told_of_the_tools(llm: ChatCachecraft, engine: FakeEngine) -> None:
    llm.bind_tools([add, Look]).invoke("hi")
    told = engine.requests[-1].prompt.messages[0]
    assert told.role == "system"
    assert '"name": "add"' in engine.requests[-1].prompt.text
    assert "Looks a word up." in engine.requests[-1].prompt.text


@pytest.mark.parametrize("choice", ["subtract", 3, {"type": "function", "function": {"name": "subtract"}}])
def test_a_choice_that_is_not_offered_is_named(llm: ChatCachecraft, choice: Any) -> None:
    with pytest.raises(InvalidInput, match=r"tool_choice=.*add, Look"):
        llm.bind_tools([add, Look], tool_choice=choice)


def test_unknown_keywords_are_named(llm: ChatCachecraft) -> None:
    with pytest.raises(InvalidInput, match="parallel_tool_calls"):
        llm.bind_tools([add], parallel_tool_calls=False).invoke("hi")


def test_calls_that_are_not_valid_are_kept_with_their_reason() -> None:
    llm = ChatCachecraft(engine=FakeEngine('<tool_call>\n{"name": "gone"}\n</tool_call><tool_call>{"name": "add", "ar'))
    answer = llm.bind_tools([add]).invoke("hi")
    assert answer.tool_calls == []
    assert ["not a tool" in (call["error"] or "") for call in answer.invalid_tool_calls] == [True, False]
    assert "raise max_tokens" in answer.response_metadata["cachecraft"]["warnings"][1]
    *pieces, last = llm.bind_tools([add]).stream("hi")
    whole = sum(pieces, start=pieces[0]) + last if pieces else last
    assert whole.tool_calls == []
    assert len(whole.invalid_tool_calls) == 2
    assert last.response_metadata["cachecraft"]["warnings"] == answer.response_metadata["cachecraft"]["warnings"]


def test_a_loop_of_calls_and_results(llm: ChatCachecraft, engine: FakeEngine) -> None:
    model = llm.bind_tools([add])
    messages: list[Any] = [HumanMessage("add 3 and 4")]
    messages.append(model.invoke(messages))
    messages += [add.invoke(call) for call in messages[-1].tool_calls]
    answer = model.invoke(messages)
    assert isinstance(answer, AIMessage)
    assert answer.tool_calls == []
    assert "7" in answer.text
    roles = [message.role for message in engine.requests[-1].prompt.messages]
    assert roles == ["system", "user", "assistant", "user"]


def test_tools_and_a_schema_at_once_are_refused(llm: ChatCachecraft) -> None:
    with pytest.raises(InvalidInput, match="cannot be asked for in one call"):
        llm.bind_tools([add]).invoke("hi", structured_outputs={"json": {}})
