"""Answers of the engine as LangChain's messages, whole or while they stream in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, cast

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall, ToolCallChunk
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.messages.tool import invalid_tool_call, tool_call, tool_call_chunk

from cachecraft_rag.answer import Answer, Usage
from cachecraft_rag.tools import OPEN, CallReader, Tool

PROVIDER = "cachecraft"
REPORT = "cachecraft"  # key of the response metadata


class AnswerReader:
    """Makes the messages of one answer. `notes`: what was wrong with its prompt, for the report."""

    def __init__(self, model_name: str, tools: Iterable[Tool], notes: Sequence[str]) -> None:
        tools = list(tools)
        self._calls = CallReader(tools) if tools else None
        self._model_name = model_name
        self._notes = list(notes)
        self._told = 0  # calls that were streamed, valid or not

    def whole(self, answer: Answer) -> AIMessage:
        text, calls, invalid = answer.text, [], []
        if self._calls is not None:
            text = self._calls.feed(answer.text) + self._calls.finish()
            calls, invalid = self._tool_calls(), self._invalid_calls()
        return AIMessage(
            content=text,
            tool_calls=calls,
            invalid_tool_calls=invalid,
            usage_metadata=_usage(answer.usage),
            response_metadata=self._metadata(answer),
        )

    def piece(self, delta: str) -> AIMessageChunk | None:
        """What can be shown of the answer now; None for nothing."""
        text = delta if self._calls is None else self._calls.feed(delta)
        calls = self._new_calls()
        return AIMessageChunk(content=text, tool_call_chunks=calls) if text or calls else None

    def last(self, answer: Answer) -> AIMessageChunk:
        """The end of a stream, with all that is known of the whole."""
        text = "" if self._calls is None else self._calls.finish()
        return AIMessageChunk(
            content=text,
            tool_call_chunks=[*self._new_calls(), *self._new_invalid_calls()],
            usage_metadata=_usage(answer.usage),
            response_metadata=self._metadata(answer),
            chunk_position="last",
        )

    def _tool_calls(self) -> list[ToolCall]:
        assert self._calls is not None
        return [tool_call(name=call.name, args=dict(call.arguments), id=call.id) for call in self._calls.calls]

    def _invalid_calls(self) -> list[InvalidToolCall]:
        assert self._calls is not None
        return [invalid_tool_call(args=call.text, error=call.error) for call in self._calls.invalid]

    def _new_calls(self) -> list[Any]:
        if self._calls is None:
            return []
        chunks = []
        for call in self._calls.calls[self._told :]:
            arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
            chunks.append(_whole_call(name=call.name, args=arguments, id=call.id))
        self._told += len(chunks)
        return chunks

    def _new_invalid_calls(self) -> list[Any]:
        """With the tag in front: LangChain would complete what was cut off, and take it for a call."""
        if self._calls is None:
            return []
        return [_whole_call(args=f"{OPEN}\n{call.text}") for call in self._calls.invalid]

    def _metadata(self, answer: Answer) -> dict[str, Any]:
        report: dict[str, Any] = {"chunks": [], "warnings": []} if answer.report is None else answer.report.to_dict()
        report["warnings"] += self._notes
        if self._calls is not None:
            report["warnings"] += [f"a tool call was not valid: {call.error}" for call in self._calls.invalid]
        metadata: dict[str, Any] = {
            "model_name": self._model_name,
            "model_provider": PROVIDER,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            REPORT: report,
        }
        if answer.logprobs is not None:
            metadata["logprobs"] = {"content": _logprobs(answer)}
        return metadata


def _whole_call(**fields: str) -> ToolCallChunk:
    """Without an index, by which LangChain would join it with other blocks: a call is always told at once."""
    return tool_call_chunk(**fields, index=None)


def _usage(usage: Usage) -> UsageMetadata:
    details = {"cache_read": usage.cache_read, "cache_creation": usage.cache_creation, "recomputed": usage.recomputed}
    return UsageMetadata(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_token_details=cast("InputTokenDetails", details),
    )


def _logprobs(answer: Answer) -> list[dict[str, Any]]:
    """OpenAI's form: for each token of the answer its log-probability, and those of its rivals."""
    content = []
    for token_id, found in zip(answer.token_ids, answer.logprobs or (), strict=True):
        rivals = [{"token": entry.decoded_token, "logprob": entry.logprob} for entry in found.values()]
        own = found[token_id]
        content.append({"token": own.decoded_token, "logprob": own.logprob, "top_logprobs": rivals})
    return content
