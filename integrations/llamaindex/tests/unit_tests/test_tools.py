"""Function calling, with and without streaming, alone and in an agent."""

from __future__ import annotations

import json

import pytest
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ToolCallBlock
from llama_index.core.tools import FunctionTool
from llama_index.llms.cachecraft import Cachecraft

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.testing import FakeEngine


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def multiply(a: int, b: int) -> int:
    """Multiplies two numbers."""
    return a * b


TOOLS = [FunctionTool.from_defaults(add), FunctionTool.from_defaults(multiply)]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
METHODS = ["chat_with_tools", "achat_with_tools", "stream_chat_with_tools", "astream_chat_with_tools"]


async def responses(llm: Cachecraft, method: str, message="add 1 and 2", **options) -> list:
    result = getattr(llm, method)(TOOLS, message, **options)
    if method.startswith("a"):
        result = await result
    if "stream" not in method:
        return [result]
    return [response async for response in result] if method.startswith("a") else list(result)


def selections(llm, response) -> list[tuple[str, dict]]:
    found = llm.get_tool_calls_from_response(response, error_on_no_tool_call=False)
    assert len({one.tool_id for one in found}) == len(found)
    return [(one.tool_name, one.tool_kwargs) for one in found]


@pytest.mark.parametrize("method", METHODS)
async def test_calls_are_read(llm, method):
    found = await responses(llm, method)
    assert selections(llm, found[-1]) == [("add", {"a": 1, "b": 2})]
    assert "".join(response.delta or "" for response in found) == ""
    [call] = found[-1].message.additional_kwargs["tool_calls"]
    assert call["function"]["name"] == "add"
    assert json.loads(call["function"]["arguments"]) == {"a": 1, "b": 2}
    assert found[-1].raw["usage"]["total_tokens"] > 0


@pytest.mark.parametrize("method", METHODS)
async def test_text_around_calls_is_shown(method):
    llm = Cachecraft(engine=FakeEngine(f"Let me see. {CALL}"))
    found = await responses(llm, method, allow_parallel_tool_calls=True)
    message = found[-1].message
    assert [type(block) for block in message.blocks] == [TextBlock, ToolCallBlock]
    assert message.content.strip() == "Let me see."
    if "stream" in method:
        assert "".join(response.delta for response in found) == message.content


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parallel", [True, False])
async def test_one_call_or_several(engine, method, parallel):
    await responses(Cachecraft(engine=engine), method, allow_parallel_tool_calls=parallel)
    layout = json.loads(engine.requests[-1].options["structured_outputs"]["structural_tag"])["format"]
    assert layout["stop_after_first"] is not parallel


@pytest.mark.parametrize(
    ("options", "forced", "offered"),
    [
        ({}, False, ["add", "multiply"]),
        ({"tool_required": True}, True, ["add", "multiply"]),
        ({"tool_choice": "required"}, True, ["add", "multiply"]),
        ({"tool_choice": "any"}, True, ["add", "multiply"]),
        ({"tool_choice": "multiply"}, True, ["multiply"]),
        ({"tool_choice": {"type": "function", "function": {"name": "multiply"}}}, True, ["multiply"]),
        ({"tool_choice": "auto"}, False, ["add", "multiply"]),
    ],
)
def test_tool_choice(llm, engine, options, forced, offered):
    llm.chat_with_tools(TOOLS, "Hi", **options)
    layout = json.loads(engine.requests[-1].options["structured_outputs"]["structural_tag"])["format"]
    assert layout["at_least_one"] is forced
    assert [
        name for name in ("add", "multiply") if any(f'"{name}"' in tag["begin"] for tag in layout["tags"])
    ] == offered


def test_tool_choice_none_offers_no_tool(llm, engine):
    assert llm.chat_with_tools(TOOLS, "add 1 and 2", tool_choice="none").message.content == "You said: add 1 and 2"
    assert "structured_outputs" not in engine.requests[-1].options


def test_wrong_tool_choices(llm):
    with pytest.raises(InvalidInput, match="'divide'"):
        llm.chat_with_tools(TOOLS, "Hi", tool_choice="divide")
    with pytest.raises(InvalidInput, match="without tools"):
        llm.chat([ChatMessage(content="Hi")], tool_choice="any")


def test_no_call_is_an_error_where_one_was_needed():
    llm = Cachecraft(engine=FakeEngine("No."))
    response = llm.chat_with_tools(TOOLS, "Hi")
    with pytest.raises(ValueError, match="called no tool, it said 'No"):
        llm.get_tool_calls_from_response(response)


def test_calls_that_cannot_be_read_are_kept():
    llm = Cachecraft(engine=FakeEngine("<tool_call>\n{oops\n</tool_call>"))
    response = llm.chat_with_tools(TOOLS, "Hi", allow_parallel_tool_calls=True)
    [invalid] = response.additional_kwargs["invalid_tool_calls"]
    assert invalid["text"] == "{oops"
    with pytest.raises(ValueError, match="oops"):
        llm.get_tool_calls_from_response(response)


async def test_predict_and_call(llm):
    assert llm.predict_and_call(TOOLS, "add 1 and 2").response == "3"
    assert (await llm.apredict_and_call(TOOLS, "multiply 3 and 4")).response == "12"


@pytest.mark.parametrize("streaming", [True, False])
async def test_an_agent(engine, streaming):
    llm = Cachecraft(engine=engine)
    agent = FunctionAgent(tools=TOOLS, llm=llm, system_prompt="Use tools.", streaming=streaming)
    output = await agent.run("add 1 and 2")
    assert [(call.tool_name, call.tool_output.raw_output) for call in output.tool_calls] == [("add", 3)]
    assert "<tool_response>" in str(output.response.content)  # the fake repeats the last turn
    roles = [message.role for message in engine.requests[-1].prompt.messages]
    assert roles == ["system", "user", "assistant", "user"]
