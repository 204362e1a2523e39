"""From LlamaIndex's chat messages to a prompt of chunks and text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    CitableBlock,
    MessageRole,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import JOINER, ChunkPrompt, Part, Text, spell_out
from cachecraft_rag.recover import RecentChunks
from cachecraft_rag.tools import Tool, ToolCall, call_parts, instructions, result_parts

_ROLES = {MessageRole.DEVELOPER: "system", MessageRole.CHATBOT: "assistant", MessageRole.MODEL: "assistant"}
_RESULT_ROLES = (MessageRole.TOOL, MessageRole.FUNCTION)


@dataclass(frozen=True, slots=True)
class ReadMessages:
    """`unmatched`: the sources of citable blocks whose text has another chunk id, and so was sent as plain text."""

    prompt: ChunkPrompt
    unmatched: tuple[str, ...]


def read_messages(
    messages: Sequence[ChatMessage], tools: Sequence[Tool] = (), recent: RecentChunks | None = None
) -> ReadMessages:
    """`recent`: chunks to find again in plain text.

    Raises `InvalidInput` for a block that is neither text nor a chunk nor a tool call.
    """
    turns: list[tuple[str, list[Part]]] = []
    unmatched: list[str] = []
    after_result = False
    for number, message in enumerate(messages):
        parts = list(_parts(number, message, unmatched, recent))
        is_result = message.role in _RESULT_ROLES
        if is_result:
            parts = result_parts(parts)
        if is_result and after_result:
            turns[-1][1].extend([Text("\n"), *parts])  # templates want the turns to alternate
        else:
            role = "user" if is_result else _ROLES.get(message.role, message.role.value)
            turns.append((role, parts))
        after_result = is_result
    if tools:
        if turns and turns[0][0] == "system":
            turns[0][1].extend([Text(JOINER), *instructions(tools)])
        else:
            turns.insert(0, ("system", instructions(tools)))
    prompt = ChunkPrompt.from_messages({"role": role, "content": parts} for role, parts in turns)
    return ReadMessages(prompt, tuple(unmatched))


def _parts(number: int, message: ChatMessage, unmatched: list[str], recent: RecentChunks | None) -> Iterator[Part]:
    """Neighbouring text blocks are joined by a line break, as in `ChatMessage.content`."""
    parts: list[Part] = []
    foreign: set[int] = set()
    calls: list[ToolCall] = []
    after_text = False
    for block in message.blocks:
        if isinstance(block, TextBlock):
            text = "\n" + block.text if after_text else block.text
            found = [text] if recent is None else recent.split(text)
            parts += [Text(part) if isinstance(part, str) else part for part in found]
        elif isinstance(block, CitableBlock):
            chunk = _chunk(number, block)
            if chunk is not None and chunk.id != block.source:
                unmatched.append(block.source)
                foreign.add(len(parts))
            parts += [] if chunk is None else [chunk]
        elif isinstance(block, ToolCallBlock):
            calls.append(ToolCall(block.tool_name, _arguments(number, block)))
        elif not isinstance(block, ThinkingBlock):  # thoughts are not sent back to the model
            raise _unreadable(number, block.block_type)
        after_text = isinstance(block, TextBlock)
    if message.additional_kwargs.get("tool_calls") and not calls:
        raise InvalidInput(
            f"message {number} has tool calls in additional_kwargs['tool_calls'] only; give them as ToolCallBlocks"
        )
    for place, (part, text) in enumerate(spell_out(parts, JOINER)):
        if place in foreign or (place - 1 in foreign and isinstance(part, Text)):
            yield Text(text)
        else:
            yield part
    if calls:
        yield from [Text("\n")] if parts else []
        yield from call_parts(calls)


def _chunk(number: int, block: CitableBlock) -> Chunk | None:
    """The block's text with its title as the document, or None if there is none."""
    texts = []
    for content in block.content:
        if not isinstance(content, TextBlock):
            raise _unreadable(number, content.block_type)
        texts.append(content.text)
    text = "\n".join(texts)
    return Chunk(text, block.title or None) if text.strip() else None


def _arguments(number: int, block: ToolCallBlock) -> dict[str, Any]:
    if isinstance(block.tool_kwargs, dict):
        return block.tool_kwargs
    try:
        arguments = json.loads(block.tool_kwargs)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise InvalidInput(
            f"the arguments of the call of {block.tool_name!r} in message {number} are no JSON object: "
            f"{block.tool_kwargs!r:.80}"
        )
    return arguments


def _unreadable(number: int, kind: str) -> InvalidInput:
    return InvalidInput(
        f"message {number} holds a block of the type {kind!r}, which the model cannot read: give text blocks, citable "
        "blocks with text, and tool calls"
    )
