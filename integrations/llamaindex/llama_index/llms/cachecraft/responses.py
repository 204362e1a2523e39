"""From the engine's answers to LlamaIndex's responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    CompletionResponse,
    MessageRole,
    TextBlock,
    ToolCallBlock,
)

from cachecraft_rag.answer import Answer, Delta
from cachecraft_rag.tools import CallReader, Tool, ToolCall


def usage_of(answer: Answer) -> dict[str, int]:
    """Under the names that LlamaIndex looks for; the last three are disjoint parts of `prompt_tokens`."""
    usage = answer.usage
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cache_read": usage.cache_read,
        "cache_creation": usage.cache_creation,
        "recomputed": usage.recomputed,
    }


class Reply:
    """Puts together what is streamed. The last response has `raw`, with usage, and the report in additional_kwargs."""

    def __init__(self, model: str, tools: Sequence[Tool] = (), notes: Mapping[str, Any] | None = None) -> None:
        self._model = model
        self._notes = dict(notes or {})
        self._reader = CallReader(tools) if tools else None
        self._text = ""

    def whole(self, answer: Answer) -> ChatResponse:
        response = self.add(Delta(answer.text, answer.token_ids, answer))
        response.delta = None
        return response

    def add(self, delta: Delta) -> ChatResponse:
        shown = delta.text
        if self._reader is not None:
            shown = self._reader.feed(shown) + (self._reader.finish() if delta.answer is not None else "")
        self._text += shown
        response = ChatResponse(message=self._message(), delta=shown)
        if delta.answer is not None:
            response.raw = self._raw(delta.answer)
            response.additional_kwargs = {"report": delta.answer.report, **self._notes}
            if self._reader is not None and self._reader.invalid:
                response.additional_kwargs["invalid_tool_calls"] = [asdict(call) for call in self._reader.invalid]
        return response

    def _message(self) -> ChatMessage:
        calls = self._reader.calls if self._reader is not None else []
        text = [TextBlock(text=self._text)] if self._text or not calls else []
        return ChatMessage(
            role=MessageRole.ASSISTANT,
            blocks=[
                *text,
                *(
                    ToolCallBlock(tool_call_id=call.id, tool_name=call.name, tool_kwargs=dict(call.arguments))
                    for call in calls
                ),
            ],
            additional_kwargs={"tool_calls": [_openai_form(call) for call in calls]} if calls else {},
        )

    def _raw(self, answer: Answer) -> dict[str, Any]:
        return {
            "model": self._model,
            "usage": usage_of(answer),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "first_token_seconds": answer.first_token_seconds,
            "report": None if answer.report is None else answer.report.to_dict(),
        }


def as_completion(response: ChatResponse) -> CompletionResponse:
    return CompletionResponse(
        text=response.message.content or "",
        raw=response.raw,
        delta=response.delta,
        additional_kwargs=response.additional_kwargs,
    )


def _openai_form(call: ToolCall) -> dict[str, Any]:
    """Parts of LlamaIndex look for calls in this form, beside the blocks."""
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}
