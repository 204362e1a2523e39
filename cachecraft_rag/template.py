"""Renders a model's chat template around parts whose text the template never sees."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput, UnsupportedModel
from cachecraft_rag.prompt import Message, Part, Text

_SYSTEM_ROLES = frozenset({"system", "developer"})
_WINDOW = 8  # characters of a sentinel that betray a remainder of it


class ChatTemplate:
    """The chat template that a transformers tokenizer had at construction.

    `default_system` is the system text of prompts that give none; None leaves that to the template.
    `options` are more arguments for the template (`enable_thinking`, `date_string`).
    """

    def __init__(self, tokenizer: Any, default_system: str | None, options: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._default_system = default_system
        self._options = dict(options)
        self._template = _template_of(tokenizer)

    @property
    def exists(self) -> bool:
        return self._template is not None

    def render(self, messages: Sequence[Message]) -> list[Part]:
        """All parts of the prompt in order: those of the messages, and the template's own text as trusted text.

        The template is rendered once, with a random alphanumeric sentinel for each chunk and untrusted text, so
        nothing in them can be changed, trimmed, escaped or taken for markup by the template. Raises `UnsupportedModel`
        if there is no template, or if it changes, drops or repeats contents; `InvalidInput` if it refuses the messages.
        """
        if self._template is None:
            raise UnsupportedModel(
                f"the tokenizer {_name(self._tokenizer)} has no chat template; use ChunkPrompt.from_parts, or give the "
                "tokenizer a chat_template"
            )
        if self._default_system is not None and not any(message.role in _SYSTEM_ROLES for message in messages):
            messages = [Message("system", (Text(self._default_system),) if self._default_system else ()), *messages]
        nonce = "cc" + secrets.token_hex(12)
        held: list[tuple[Message, Part]] = []
        contents: list[dict[str, str]] = []
        for message in messages:
            content = ""
            for part in message.parts:
                if isinstance(part, Text) and part.trusted:
                    content += part.text
                else:
                    content += f"{nonce}p{len(held)}q"
                    held.append((message, part))
            contents.append({"role": message.role or "user", "content": content})
        pieces = re.split(rf"{nonce}p([0-9]+)q", self._apply(contents))
        order = [int(index) for index in pieces[1::2]]
        _check(order, pieces[::2], nonce, held)
        parts: list[Part] = [Text(pieces[0], trusted=True)]
        for index, text in zip(order, pieces[2::2], strict=True):
            parts += [held[index][1], Text(text, trusted=True)]
        return [part for part in parts if isinstance(part, Chunk) or part.text]

    def render_head(self) -> list[Part]:
        """The parts that stand before the first content of the user, with the default system text."""
        probe = Chunk("probe")
        parts = self.render([Message("user", (probe,))])
        return parts[: next(index for index, part in enumerate(parts) if part is probe)]

    def _apply(self, contents: list[dict[str, str]]) -> str:
        from jinja2 import TemplateError

        try:
            return self._render_text(contents)
        except (TemplateError, TypeError, ValueError) as error:
            roles = ", ".join(content["role"] for content in contents)
            others = [content for content in contents if content["role"] not in _SYSTEM_ROLES]
            if len(others) < len(contents) and self._renders(others):
                raise InvalidInput(
                    f"the chat template of {_name(self._tokenizer)} refuses a system message ({error}); leave the "
                    "system text out, or put it into the user's message"
                ) from error
            raise InvalidInput(
                f"the chat template of {_name(self._tokenizer)} refuses the messages with the roles {roles}: {error}"
            ) from error

    def _render_text(self, contents: list[dict[str, str]]) -> str:
        rendered = self._tokenizer.apply_chat_template(
            contents, chat_template=self._template, tokenize=False, add_generation_prompt=True, **self._options
        )
        return str(rendered)

    def _renders(self, contents: list[dict[str, str]]) -> bool:
        from jinja2 import TemplateError

        try:
            self._render_text(contents)
        except (TemplateError, TypeError, ValueError):
            return False
        return True


def _check(order: list[int], texts: list[str], nonce: str, held: list[tuple[Message, Part]]) -> None:
    """Raise unless each part came back once and whole, in order.

    Only the system text may move: some templates put it into the last turn of the user.
    """

    def place(index: int) -> str:
        message, part = held[index]
        return f"{'a chunk' if isinstance(part, Chunk) else 'the text'} of a message with the role {message.role!r}"

    missing = sorted(set(range(len(held))) - set(order))
    if missing and all(held[index][0].role in _SYSTEM_ROLES for index in missing):
        raise InvalidInput(
            f"the chat template drops {place(missing[0])}; leave the system text out, or put it into the user's message"
        )
    way_out = "use ChunkPrompt.from_parts, or another chat_template"
    if missing:
        raise UnsupportedModel(f"the chat template drops or changes {place(missing[0])}; {way_out}")
    repeated = next((index for index in order if order.count(index) > 1), None)
    if repeated is not None:
        raise UnsupportedModel(f"the chat template repeats {place(repeated)}; {way_out}")
    movable = {i for i, (message, part) in enumerate(held) if message.role in _SYSTEM_ROLES and isinstance(part, Text)}
    fixed = [index for index in order if index not in movable]
    if fixed != sorted(fixed):
        moved = next(later for earlier, later in pairwise(fixed) if later < earlier)
        raise UnsupportedModel(f"the chat template moves {place(moved)}; {way_out}")
    windows = [nonce[start : start + _WINDOW] for start in range(len(nonce) - _WINDOW + 1)]
    if any(window in text.lower() for text in texts for window in windows):
        raise UnsupportedModel(f"the chat template repeats or changes a part of a message's content; {way_out}")


def _template_of(tokenizer: Any) -> str | None:
    if not getattr(tokenizer, "chat_template", None):
        return None
    try:
        return str(tokenizer.get_chat_template())
    except ValueError as error:
        raise UnsupportedModel(
            f"the tokenizer {_name(tokenizer)} has several chat templates and none is the default ({error}); set its "
            "chat_template to one of them"
        ) from error


def _name(tokenizer: Any) -> str:
    return repr(getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__)
