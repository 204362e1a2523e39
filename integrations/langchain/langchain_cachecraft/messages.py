"""LangChain's messages as a prompt of chunks and text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import JOINER, ChunkPrompt, Part, Text
from cachecraft_rag.recover import RecentChunks
from cachecraft_rag.tools import CLOSE, OPEN, Tool, ToolCall, call_parts, instructions, result_parts
from langchain_cachecraft.documents import DOCUMENT_ID, chunk_of

Split = Callable[[str], Iterable[str | Chunk]]

_CHUNK_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_TEXT_BLOCKS = ("text", "text-plain")
# In turns of the model: calls are taken from the message's own fields, and thoughts are never sent back.
_OWN_BLOCKS = frozenset(
    [
        "function_call",
        "invalid_tool_call",
        "reasoning",
        "redacted_thinking",
        "thinking",
        "tool_call",
        "tool_call_chunk",
        "tool_use",
    ]
)
_RESULTS = (ToolMessage, FunctionMessage)
_PLAIN = {SystemMessage: "system", HumanMessage: "user", AIMessage: "assistant"}


class PromptBuilder:
    """Makes one prompt. `notes` then holds what was found wrong with it, one sentence each.

    `recent`: chunks to be found in flat text; None leaves flat text as it is.
    """

    def __init__(self, recent: RecentChunks | None = None) -> None:
        self.notes: list[str] = []
        self._split: Split = _whole if recent is None else recent.split

    def build(self, messages: Sequence[BaseMessage], tools: Sequence[Tool] = ()) -> ChunkPrompt:
        """Raises `InvalidInput` for content that is not text, naming its type."""
        turns: list[dict[str, Any]] = []
        for is_result, group in groupby(messages, key=lambda message: isinstance(message, _RESULTS)):
            if is_result:
                turns.append({"role": "user", "content": self._results(group)})
            else:
                turns += [self._turn(message) for message in group]
        return ChunkPrompt.from_messages(_with_tools(turns, tools) if tools else turns)

    def _turn(self, message: BaseMessage) -> dict[str, Any]:
        role = _role(message)
        if not isinstance(message, AIMessage):
            return {"role": role, "content": self._parts(message, self._split)}
        calls = _calls(message)
        parts = self._parts(message, _whole)
        return {"role": role, "content": [*parts, "\n", *calls] if parts and calls else [*parts, *calls]}

    def _results(self, messages: Iterable[BaseMessage]) -> list[str | Part]:
        """The results of calls that were made together, as one turn."""
        parts: list[str | Part] = []
        for number, message in enumerate(messages):
            found = self._parts(message, self._split_result(message))
            parts += ["\n"] if number else []
            parts += result_parts([Text(part) if isinstance(part, str) else part for part in found])
        return parts

    def _split_result(self, message: BaseMessage) -> Split:
        """Finds the documents of a retriever's artifact in the text that was made of them."""
        artifact = getattr(message, "artifact", None)
        documents = [artifact] if isinstance(artifact, Document) else artifact
        if not documents or not isinstance(documents, list) or not all(isinstance(one, Document) for one in documents):
            return self._split
        known = RecentChunks(capacity=len(documents), min_chars=1)
        known.remember(chunk_of(document) for document in documents if document.page_content.strip())

        def split(text: str) -> list[str | Chunk]:
            ended = known.split(text + JOINER)  # the last document lacks the blank line that all others have
            return ended if isinstance(ended[-1], Chunk) else known.split(text)

        return split

    def _parts(self, message: BaseMessage, split: Split) -> list[str | Part]:
        content: Sequence[str | Mapping[str, Any]] = (
            [message.content] if isinstance(message.content, str) else message.content
        )
        parts: list[str | Part] = []
        text = ""
        for block in content:
            chunk, piece = self._read(message, block)
            text += piece
            if chunk is not None:
                parts += [*split(text), chunk]
                text = ""
        return [*parts, *split(text)]

    def _read(self, message: BaseMessage, block: str | Mapping[str, Any]) -> tuple[Chunk | None, str]:
        """A block's chunk, or its text."""
        if isinstance(block, str):
            return None, block
        kind, text, name = block.get("type"), block.get("text"), block.get("id")
        if isinstance(message, AIMessage) and kind in _OWN_BLOCKS:
            return None, ""
        if kind not in _TEXT_BLOCKS or not isinstance(text, str):
            raise InvalidInput(
                f"a message of the type {message.type!r} holds a content block of the type {kind!r}, but the model "
                "takes only text: leave it out, or put its text into a block of the type 'text'"
            )
        if not isinstance(name, str) or not _CHUNK_ID.fullmatch(name):
            return None, text  # other packages give ids to blocks, too
        chunk = Chunk(text, _document_id(block)) if text.strip() else None
        if chunk is not None and chunk.id == name:
            return chunk, ""
        self.notes.append(
            f"the id {name} is not that of its text ({text!r:.40}, which has "
            f"{chunk.id if chunk else 'none'}): it was sent as plain text, not as a chunk"
        )
        return None, text


def _whole(text: str) -> list[str | Chunk]:
    return [text] if text else []


def _document_id(block: Mapping[str, Any]) -> str | None:
    extras = block.get("extras")
    name = extras.get(DOCUMENT_ID) if isinstance(extras, Mapping) else None
    return name if isinstance(name, str) else None


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    role = next((role for kind, role in _PLAIN.items() if isinstance(message, kind)), None)
    if role is None:
        raise InvalidInput(
            f"a message of the type {message.type!r} can't be sent: give system, human, ai, tool or chat messages"
        )
    return role


def _calls(message: AIMessage) -> list[Part]:
    parts = call_parts([ToolCall(call["name"], call["args"], call["id"] or "") for call in message.tool_calls])
    for call in message.invalid_tool_calls:
        body = (call["args"] or "").removeprefix(f"{OPEN}\n")  # there if the call was streamed
        parts += [Text(f"{OPEN}\n", trusted=True), Text(body), Text(f"\n{CLOSE}", trusted=True)]
    return parts


def _with_tools(turns: list[dict[str, Any]], tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools behind the system text, which is made if there is none."""
    offered = instructions(tools)
    if turns and turns[0]["role"] == "system":
        first = turns[0]
        return [{**first, "content": [*first["content"], JOINER, *offered]}, *turns[1:]]
    return [{"role": "system", "content": offered}, *turns]
