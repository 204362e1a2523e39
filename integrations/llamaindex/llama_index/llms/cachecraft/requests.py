"""From what a caller gave to what the engine is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.llms.cachecraft.messages import read_messages

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.recover import RecentChunks
from cachecraft_rag.tools import Tool, constraint


@dataclass(frozen=True, slots=True)
class Request:
    """`options`: for the engine. `notes`: what the response must say about the request."""

    prompt: ChunkPrompt
    options: Mapping[str, Any]
    tools: tuple[Tool, ...] = ()
    notes: Mapping[str, Any] = field(default_factory=dict)


def read_request(
    messages: Sequence[ChatMessage], options: Mapping[str, Any], recent: RecentChunks | None = None
) -> Request:
    """`options`: for the engine, and `tools`, `tool_choice` and `allow_parallel_tool_calls`."""
    rest = dict(options)
    tools, choice = _tools(rest)
    parallel = rest.pop("allow_parallel_tool_calls", True)
    if tools:
        rest["structured_outputs"] = constraint(tools, choice, parallel=bool(parallel))
    read = read_messages(messages, tools, recent)
    return Request(read.prompt, rest, tools, {"unmatched_chunks": list(read.unmatched)} if read.unmatched else {})


def plain_request(prompt: str, options: Mapping[str, Any], recent: RecentChunks | None = None) -> Request:
    """For the text as it is, without a chat template and without tools."""
    return Request(ChunkPrompt.from_parts([prompt] if recent is None else recent.split(prompt)), dict(options))


def _tools(options: dict[str, Any]) -> tuple[tuple[Tool, ...], str]:
    tools = tuple(Tool.of(tool) for tool in options.pop("tools", None) or ())
    choice = options.pop("tool_choice", None)
    if isinstance(choice, Mapping):
        choice = choice.get("function", {}).get("name", choice)
    if choice is None or choice == "auto":
        return tools, "auto"
    if choice == "none":
        return (), "auto"
    if not tools:
        raise InvalidInput(f"tool_choice={choice!r} was given without tools")
    return tools, "any" if choice == "required" else choice
