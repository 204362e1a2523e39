"""Function calling: what LlamaIndex's agents and programs ask of an LLM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole, ToolCallBlock
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from llama_index.core.tools.types import BaseTool


class ToolCalling(FunctionCallingLLM):
    """The tools stand in the system message, and the answer is constrained to calls with arguments of their schemas."""

    def _prepare_chat_with_tools(
        self,
        tools: Sequence[BaseTool],
        user_msg: str | ChatMessage | None = None,
        chat_history: list[ChatMessage] | None = None,
        verbose: bool = False,
        allow_parallel_tool_calls: bool = False,
        tool_required: bool = False,
        **kwargs: Any,
    ) -> dict[str, Any]:
        messages = list(chat_history or [])
        if user_msg is not None:
            messages.append(
                ChatMessage(role=MessageRole.USER, content=user_msg) if isinstance(user_msg, str) else user_msg
            )
        choice = kwargs.pop("tool_choice", None) or ("any" if tool_required else "auto")
        return {
            "messages": messages,
            "tools": [tool.metadata.to_openai_tool(skip_length_check=True) for tool in tools],
            "tool_choice": choice if tools else None,
            "allow_parallel_tool_calls": allow_parallel_tool_calls,
            **kwargs,
        }

    def get_tool_calls_from_response(
        self, response: ChatResponse, error_on_no_tool_call: bool = True, **kwargs: Any
    ) -> list[ToolSelection]:
        """Raises ValueError if there is none, unless told otherwise."""
        calls = [block for block in response.message.blocks if isinstance(block, ToolCallBlock)]
        if not calls and error_on_no_tool_call:
            invalid = response.additional_kwargs.get("invalid_tool_calls")
            reason = f"; it tried: {invalid}" if invalid else ""
            raise ValueError(f"the model called no tool, it said {response.message.content!r:.200}{reason}")
        return [
            ToolSelection(
                tool_id=call.tool_call_id or "",
                tool_name=call.tool_name,
                tool_kwargs=cast(dict[str, Any], call.tool_kwargs),
            )
            for call in calls
        ]
