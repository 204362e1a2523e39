"""Which chunks go into which call, and the messages of each call."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from llama_index.core.base.llms.types import ChatMessage, ContentBlock, TextBlock
from llama_index.core.prompts import BasePromptTemplate
from llama_index.llms.cachecraft.nodes import block_of

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput

Overflow = Literal["drop", "raise", "refine"]
Count = Callable[[Sequence[ChatMessage]], int]


@dataclass(frozen=True, slots=True)
class Round:
    """One call of the LLM. `dropped`: chunks that no call will hold."""

    messages: list[ChatMessage]
    last: bool
    dropped: tuple[Chunk, ...] = ()


class Rounds:
    """Chunks in retrieval order, in one call, or with "refine" in as many as it takes.

    `room`: tokens that the messages of a call may have, by `count`. `finish`: what is done to the messages made from a
    template. A chunk is never split.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        qa_template: BasePromptTemplate,
        refine_template: BasePromptTemplate,
        arguments: Mapping[str, Any],
        *,
        overflow: Overflow,
        room: int,
        count: Count,
        finish: Callable[[list[ChatMessage]], list[ChatMessage]],
    ) -> None:
        self._left = list(chunks)
        self._qa_template = qa_template
        self._refine_template = refine_template
        self._arguments = dict(arguments)
        self._overflow = overflow
        self._room = room
        self._count = count
        self._finish = finish

    def next(self, answer: str | None) -> Round:
        """`answer`: of the round before, None at first.

        Raises `InvalidInput` if not even one chunk fits, or with "raise" if not all of them do.
        """
        if answer is None:
            template, variable, arguments = self._qa_template, "context_str", self._arguments
        else:
            template, variable = self._refine_template, "context_msg"
            arguments = {**self._arguments, "existing_answer": answer}
        taken = len(self._left)
        while True:
            messages = self._finish(place(template, variable, self._left[:taken], arguments))
            tokens = self._count(messages)
            if tokens <= self._room:
                break
            if self._overflow == "raise" or taken <= 1:
                raise InvalidInput(
                    f"the prompt with {taken} of {len(self._left)} chunks has {tokens} tokens, but the model's context "
                    f"has room for {self._room} beside the answer: retrieve fewer or smaller chunks, lower max_tokens, "
                    "or give the engine a larger max_model_len"
                )
            taken -= 1
        rest = self._left[taken:]
        self._left = rest if self._overflow == "refine" else []
        return Round(messages, not self._left, () if self._overflow == "refine" else tuple(rest))


def place(
    template: BasePromptTemplate, variable: str, chunks: Sequence[Chunk], arguments: Mapping[str, Any]
) -> list[ChatMessage]:
    """The template's messages with the chunks as blocks where `variable` stands; it never sees their text."""
    nonce = secrets.token_hex(16)
    messages = template.format_messages(**{**arguments, variable: nonce})
    placed = [_with_blocks(message, nonce, [block_of(chunk) for chunk in chunks]) for message in messages]
    if placed == messages:
        raise InvalidInput(
            f"the prompt template does not contain {{{variable}}}, where the chunks go: "
            f"{template.get_template(arguments.get('llm'))!r:.200}"
        )
    return placed


def _with_blocks(message: ChatMessage, nonce: str, chunks: Sequence[ContentBlock]) -> ChatMessage:
    blocks: list[ContentBlock] = []
    for block in message.blocks:
        pieces = block.text.split(nonce) if isinstance(block, TextBlock) else [""]
        if len(pieces) == 1:
            blocks.append(block)
            continue
        for number, piece in enumerate(pieces):
            blocks += chunks if number else []
            blocks += [TextBlock(text=piece)] if piece else []
    return message.model_copy(update={"blocks": blocks})
