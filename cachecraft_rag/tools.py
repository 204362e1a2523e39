"""Tool calling for any chat model: what the model is told, what it may write, and what it wrote.

The markup is that of the Hermes models, which Qwen's own chat templates use too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import Part, Text

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_RESULT_OPEN, _RESULT_CLOSE = "<tool_response>\n", "\n</tool_response>"
_BEFORE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>"""
_AFTER = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters`: the JSON schema of its arguments, an object."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})

    @classmethod
    def of(cls, value: Tool | Mapping[str, Any]) -> Tool:
        """From OpenAI's form, `{"type": "function", "function": {"name": ..., "parameters": ...}}`."""
        if isinstance(value, Tool):
            return value
        function = value.get("function") if isinstance(value, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise InvalidInput(f"{value!r:.120} is no tool; give it in OpenAI's form, with function.name")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        return cls(function["name"], function.get("description") or "", parameters)

    def to_dict(self) -> dict[str, Any]:
        """OpenAI's form."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: Mapping[str, Any]
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


@dataclass(frozen=True, slots=True)
class InvalidToolCall:
    """What stood between the tags (or after an open one) and is no call of a tool that was offered."""

    text: str
    error: str


def instructions(tools: Iterable[Tool]) -> list[Part]:
    """The system text that offers the tools."""
    listed = "".join(f"\n{json.dumps(tool.to_dict(), ensure_ascii=False)}" for tool in tools)
    return [Text(_BEFORE, trusted=True), Text(listed), Text(_AFTER, trusted=True)]


def call_parts(calls: Sequence[ToolCall]) -> list[Part]:
    """Calls as the model wrote them, for the history of a conversation."""
    parts: list[Part] = []
    for number, call in enumerate(calls):
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        separator = "\n" if number else ""
        parts += [Text(f"{separator}{OPEN}\n", trusted=True), Text(body), Text(f"\n{CLOSE}", trusted=True)]
    return parts


def result_parts(result: Iterable[Part]) -> list[Part]:
    """The result of a call, chunks included, as a turn of the user."""
    return [Text(_RESULT_OPEN, trusted=True), *result, Text(_RESULT_CLOSE, trusted=True)]


def constraint(tools: Sequence[Tool], choice: str = "auto", *, parallel: bool = True) -> dict[str, Any]:
    """What `structured_outputs` must be so that whatever is called is a tool with arguments of its schema.

    `choice`: "auto" leaves it to the model whether it calls one, "any" makes it call one, a name makes it call that.
    Without `parallel` the answer ends behind the first call.
    """
    offered = list(tools) if choice in ("auto", "any") else [tool for tool in tools if tool.name == choice]
    if not offered:
        names = ", ".join(tool.name for tool in tools) or "none"
        raise InvalidInput(f"tool_choice={choice!r} is not a tool that is offered ({names}), 'auto' or 'any'")
    tags = [
        {
            "begin": f'{OPEN}\n{{"name": {json.dumps(tool.name, ensure_ascii=False)}, "arguments": ',
            "content": {"type": "json_schema", "json_schema": dict(tool.parameters)},
            "end": f"}}\n{CLOSE}",
        }
        for tool in offered
    ]
    forced = choice != "auto"
    triggered = {"type": "triggered_tags", "triggers": [OPEN], "tags": tags}
    layout = {**triggered, "at_least_one": forced, "stop_after_first": forced or not parallel}
    return {"structural_tag": json.dumps({"type": "structural_tag", "format": layout}, ensure_ascii=False)}


class CallReader:
    """Tells calls from text while an answer streams in."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self.calls: list[ToolCall] = []
        self.invalid: list[InvalidToolCall] = []
        self._names = {tool.name for tool in tools}
        self._held = ""
        self._gap = ""

    def feed(self, delta: str) -> str:
        """What of the answer so far is text to show; calls that are complete now are in `calls`.

        White space behind a call is shown only if text follows.
        """
        self._held += delta
        shown = ""
        while True:
            before, opened, rest = self._held.partition(OPEN)
            if not opened:
                keep = _overlap(before, OPEN)
                self._held = before[len(before) - keep :]
                return shown + self._shown(before[: len(before) - keep])
            shown += self._shown(before)
            end = _end_of_call(rest)
            body, closed, behind = rest[:end], rest[end : end + len(CLOSE)], rest[end + len(CLOSE) :]
            if not closed:
                self._held = opened + rest
                return shown
            self._read(body)
            self._held = behind

    def finish(self) -> str:
        """The answer is complete: what is left to show. A call that was cut off is `invalid`."""
        held, self._held = self._held, ""
        if not held.startswith(OPEN):
            return self._shown(held)
        body, closed, behind = held.removeprefix(OPEN).partition(CLOSE)
        self._read(body, cut=not closed)
        return self._shown(behind)

    def _shown(self, text: str) -> str:
        if not self.calls and not self.invalid:
            return text
        text, self._gap = self._gap + text, ""
        if text.strip():
            return text
        self._gap = text
        return ""

    def _read(self, body: str, *, cut: bool = False) -> None:
        text, self._gap = body.strip(), ""
        try:
            call = json.loads(text)
        except ValueError as error:
            reason = "the answer ended inside the call; raise max_tokens" if cut else f"it is not JSON: {error}"
            self.invalid.append(InvalidToolCall(text, reason))
            return
        name, arguments = (call.get("name"), call.get("arguments", {})) if isinstance(call, dict) else (None, None)
        if name not in self._names:
            self.invalid.append(InvalidToolCall(text, f"{name!r} is not a tool that was offered"))
        elif not isinstance(arguments, dict):
            self.invalid.append(InvalidToolCall(text, "its arguments are not an object"))
        else:
            self.calls.append(ToolCall(name, arguments))


def _end_of_call(text: str) -> int:
    """Where the closing tag of a call begins: behind its JSON, whose strings may hold the tag. len(text): not yet."""
    if CLOSE not in text:
        return len(text)
    start = len(text) - len(text.lstrip())
    try:
        _, at = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated string") or error.pos >= len(text.rstrip()):
            return len(text)
        at = start
    found = text.find(CLOSE, at)
    return len(text) if found < 0 else found


def _overlap(text: str, tag: str) -> int:
    """The longest end of `text` that may be the beginning of `tag`."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
