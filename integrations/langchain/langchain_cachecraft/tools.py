"""LangChain's tools and tool choices in the core's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.utils.function_calling import convert_to_openai_tool

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.tools import Tool

_ANY, _AUTO, _NONE = ("any", "required", True), ("auto", None), ("none", False)


def core_tools(tools: Sequence[Any]) -> list[Tool]:
    """From whatever `bind_tools` takes: LangChain's tools, functions, Pydantic classes, TypedDicts, schemas."""
    return [Tool.of(convert_to_openai_tool(tool)) for tool in tools]


def core_choice(choice: Any, tools: Sequence[Tool]) -> str | None:
    """ "auto", "any", or the name of a tool; None if no tool may be called. Raises `InvalidInput` for all else."""
    if isinstance(choice, dict):  # OpenAI's form, and Anthropic's
        function = choice.get("function")
        choice = function.get("name") if isinstance(function, dict) else choice.get("name", choice.get("type"))
    if choice in _AUTO:
        return "auto"
    if choice in _NONE:
        return None
    if choice in _ANY:
        return "any"
    if isinstance(choice, str) and choice in {tool.name for tool in tools}:
        return choice
    names = ", ".join(tool.name for tool in tools) or "none"
    raise InvalidInput(
        f"tool_choice={choice!r} is not possible: give 'auto', 'any', 'none' or one of the tools: {names}"
    )
