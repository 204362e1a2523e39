"""Prompts as ordered lists of parts: chunks, and the text around them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from cachecraft_rag.chunk import Chunk, check_text
from cachecraft_rag.errors import InvalidInput

JOINER = "\n\n"
_ROLE = re.compile(r"[A-Za-z0-9_-]+")  # a role becomes template text, so it may hold no markup


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is not a chunk. Special tokens are recognised in it only if it is `trusted`.

    Trust only what no user and no document can influence: the text of a chat template.
    """

    text: str
    trusted: bool = False

    def __post_init__(self) -> None:
        check_text(self.text, "text in a prompt")


Part: TypeAlias = Chunk | Text


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat; `role` is None for the one message of a free-form prompt."""

    role: str | None
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class ChunkPrompt:
    """An immutable prompt. Make one with `chat`, `from_messages` or `from_parts`.

    A chunk always stands for its text and the joiner after it, so text that directly follows a chunk may begin with the
    joiner or leave it out: both mean the same prompt.
    """

    messages: tuple[Message, ...]

    @classmethod
    def chat(
        cls,
        chunks: Iterable[str | Chunk],
        question: str,
        *,
        system: str | None = None,
        question_first: bool = False,
    ) -> ChunkPrompt:
        """One user turn with the chunks and the question, which may be empty, for the model's chat template.

        `system=None` leaves the system text to the tokenizer's default, `system=""` asks for an empty one.
        """
        if isinstance(chunks, str):
            raise InvalidInput(f"chunks must be a list of chunks, got the str {chunks!r:.80}; put it into a list")
        placed = [Chunk.of(chunk) for chunk in chunks]
        if not placed:
            raise InvalidInput("the list of chunks is empty; use plain generation for a prompt without chunks")
        check_text(question, "the question")
        if question_first:
            content: list[str | Part] = [question + JOINER if question else "", *placed]
        else:
            content = [*placed, question]
        user = Message("user", _merged(content))
        if system is None:
            return cls((user,))
        return cls((Message("system", _merged([check_text(system, "the system text")])), user))

    @classmethod
    def from_messages(cls, messages: Iterable[Mapping[str, Any]]) -> ChunkPrompt:
        """A chat from `{"role": str, "content": str | Sequence[str | Chunk]}` messages, for the model's chat template.

        A str in a content is untrusted text; `Text` is accepted too.
        """
        turns = tuple(_message(index, message) for index, message in enumerate(messages))
        if not turns:
            raise InvalidInput("the list of messages is empty; give at least one user message")
        return cls(turns)

    @classmethod
    def from_parts(cls, parts: Iterable[str | Part]) -> ChunkPrompt:
        """A free-form prompt for plain completion, without a chat template. A str is untrusted text."""
        if isinstance(parts, str):
            raise InvalidInput(f"parts must be a list of parts, got the str {parts!r:.80}; put it into a list")
        merged = _merged(parts)
        if not merged:
            raise InvalidInput("the prompt is empty; give at least one chunk or some text")
        return cls((Message(None, merged),))

    @property
    def is_chat(self) -> bool:
        return self.messages[0].role is not None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all messages, in order."""
        return tuple(part for message in self.messages for part in message.parts)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The chunks of all messages, in order, repeated ones as often as they occur."""
        return tuple(part for part in self.parts if isinstance(part, Chunk))

    @property
    def text(self) -> str:
        """The prompt as flat text, for people to read: messages joined by the joiner, without roles and template."""
        return JOINER.join("".join(text for _, text in spell_out(message.parts, JOINER)) for message in self.messages)


def spell_out(parts: Iterable[Part], joiner: str) -> Iterator[tuple[Part, str]]:
    """Each part with the exact text it stands for: a chunk ends with the joiner, which the next text doesn't repeat."""
    after_chunk = False
    for part in parts:
        if isinstance(part, Chunk):
            yield part, part.text + joiner
        else:
            yield part, part.text.removeprefix(joiner) if after_chunk else part.text
        after_chunk = isinstance(part, Chunk)


def _merged(content: Iterable[str | Part]) -> tuple[Part, ...]:
    """Parts without empty texts and with neighbouring texts of the same trust made one."""
    parts = [part if isinstance(part, (Chunk, Text)) else Text(part) for part in content]
    kept = [part for part in parts if isinstance(part, Chunk) or part.text]
    merged: list[Part] = []
    for trusted, group in groupby(kept, key=lambda part: part.trusted if isinstance(part, Text) else None):
        if trusted is None:
            merged.extend(group)
        else:
            merged.append(Text("".join(part.text for part in group), trusted))
    return tuple(merged)


def _message(index: int, message: Mapping[str, Any]) -> Message:
    if not isinstance(message, Mapping) or set(message) != {"role", "content"}:
        raise InvalidInput(f"message {index} must be a mapping with just 'role' and 'content', got {message!r:.120}")
    role, content = message["role"], message["content"]
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise InvalidInput(f"the role of message {index} is {role!r:.80}; use one like 'system', 'user' or 'assistant'")
    if isinstance(content, (str, Chunk, Text)):
        content = [content]
    if not isinstance(content, Sequence) or not all(isinstance(part, (str, Chunk, Text)) for part in content):
        raise InvalidInput(
            f"the content of message {index} must be a str or a list of str and Chunk, got {content!r:.120}"
        )
    return Message(role, _merged(content))
