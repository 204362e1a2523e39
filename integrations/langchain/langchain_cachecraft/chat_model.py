"""`ChatCachecraft`: LangChain's chat model over an engine that reuses the KV of chunks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from typing import Any, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import Field

from cachecraft_rag.answer import Answer, Delta
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.interface import Engine
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.recover import RecentByNamespace, RecentChunks
from cachecraft_rag.tools import constraint
from langchain_cachecraft.answers import PROVIDER, AnswerReader
from langchain_cachecraft.documents import chunk_of
from langchain_cachecraft.engine_owner import EngineOwner
from langchain_cachecraft.messages import PromptBuilder
from langchain_cachecraft.structured import (
    METHODS,
    Method,
    call_name,
    call_parser,
    json_constraint,
    json_parser,
    parsed,
    traced,
)
from langchain_cachecraft.tools import core_choice, core_tools

# Fields that are options of every request; a keyword of the call wins over its field.
_SAMPLING = (
    "temperature",
    "max_tokens",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)
_REUSE = ("policy", "recompute_ratio", "namespace")
# LangChain's own: they are for its callbacks and its choice between invoke and stream, not for a model.
_LANGCHAINS_OWN = ("stream", "ls_structured_output_format", "structured_output_format")


@dataclass(frozen=True, slots=True)
class _Call:
    """One request, as the engine takes it, and the reader of its answer."""

    prompt: ChunkPrompt
    options: Mapping[str, Any]
    reader: AnswerReader = field(repr=False)


class ChatCachecraft(EngineOwner):
    """A chat model whose prompts may hold chunks: text blocks whose `id` is the id of their text.

    `ChunkPromptTemplate` makes such blocks. What was reused is in `response_metadata["cachecraft"]` of every answer.

    Give `model` (a Hugging Face name or folder), and the engine is started by the first call, or `engine`, one that
    runs already. Copies (`bind`, `configurable_fields`, `model_copy`) share it. The first call takes some seconds then;
    `start` can do it ahead. Since the engine is a process of its own, a script must start it under
    `if __name__ == "__main__":`. `close` ends an engine that was started here, and leaves a given one alone.
    """

    temperature: float | None = None
    """None, here and below, stands for the engine's default: greedy, 256 tokens."""
    max_tokens: int | None = None
    stop: list[str] | str | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    streaming: bool = False

    policy: str | None = None
    """Which tokens of reused chunks are recomputed; None, here and below, leaves it to the engine."""
    recompute_ratio: float | None = None
    """How many of them: 0 none, 1 all, which is exact."""
    namespace: str | None = None
    """Tenant: nothing is shared between two of them."""
    recover_chunks: bool = False
    """Find chunks that were retrieved lately (see `remember`) in flat text, for chains that make one string of them."""

    recent: RecentByNamespace = Field(default_factory=RecentByNamespace, exclude=True, repr=False)

    def remember(self, documents: Iterable[Document]) -> None:
        """Chunks to be found in flat text where `recover_chunks` is on; a `ChunkRetriever` with this model does it.

        They are found in requests of this model's namespace only.
        """
        self.recent_chunks.remember(chunk_of(document) for document in documents if document.page_content.strip())

    def get_num_tokens(self, text: str) -> int:
        return self.start().count_tokens(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        """The tokens of the prompt that these messages make, the model's chat template included."""
        prompt = PromptBuilder(self._findable(self.namespace)).build(messages, core_tools(tools or ()))
        return self.start().count_tokens(prompt)

    def get_token_ids(self, text: str) -> list[int]:
        if self.custom_get_token_ids is None:
            raise NotImplementedError("an engine only counts tokens: use get_num_tokens, or give custom_get_token_ids=")
        return self.custom_get_token_ids(text)

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: dict[str, Any] | str | bool | None = None,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """`tool_choice`: "auto", "any", "none" or a tool's name. Arguments always follow the schema, strict or not."""
        offered = core_tools(tools)
        choice = core_choice(tool_choice, offered)
        return self.bind(tools=[tool.to_dict() for tool in offered], tool_choice=choice or "none", **kwargs)

    def with_structured_output(
        self,
        schema: dict[str, Any] | type | None = None,
        *,
        method: Method = "json_schema",
        include_raw: bool = False,
        strict: bool | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """A model that answers with objects of `schema`: a Pydantic class, a TypedDict or a JSON schema.

        "json_schema" and "json_mode" bind the answer to the schema, "function_calling" makes a tool of it, which tells
        the model of the schema, too. Without a schema "json_mode" gives any JSON object. Answers follow the schema,
        strict or not.
        """
        if method not in METHODS:
            raise InvalidInput(f"method={method!r} is not supported: give one of {', '.join(METHODS)}")
        if kwargs:
            raise InvalidInput(f"with_structured_output has no parameter {', '.join(map(repr, sorted(kwargs)))}")
        if schema is None and method != "json_mode":
            raise InvalidInput(f"method={method!r} needs a schema; only 'json_mode' does without")
        if method == "function_calling" and schema is not None:
            model = self.bind_tools([schema], tool_choice=call_name(schema), **traced(schema, method))
            return parsed(model, call_parser(schema), include_raw)
        bound = self.bind(structured_outputs=json_constraint(schema), **traced(schema, method))
        return parsed(bound, json_parser(schema), include_raw)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, kwargs)
        return _result(call, self.start().generate(call.prompt, **call.options))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(messages, stop, kwargs)
        engine = await self._astart()
        return _result(call, await engine.agenerate(call.prompt, **call.options))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call = self._call(messages, stop, kwargs)
        stream = cast("Generator[Delta, None, None]", self.start().stream(call.prompt, **call.options))
        with closing(stream) as deltas:
            for delta in deltas:
                yield from _pieces(call, delta)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call = self._call(messages, stop, kwargs)
        engine = await self._astart()
        stream = cast("AsyncGenerator[Delta, None]", engine.astream(call.prompt, **call.options))
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                for piece in _pieces(call, delta):
                    yield piece

    async def _astart(self) -> Engine:
        running = self.started_engine
        return await asyncio.to_thread(self.start) if running is None else running

    def _call(self, messages: Sequence[BaseMessage], stop: list[str] | None, keywords: Mapping[str, Any]) -> _Call:
        options = {name: value for name, value in keywords.items() if name not in _LANGCHAINS_OWN}
        asked = options.pop("model", None)
        if asked not in (None, self._model_name):
            raise InvalidInput(f"model={asked!r} is not what the engine runs, {self._model_name!r}: make another model")
        tools = core_tools(options.pop("tools", None) or ())
        choice = core_choice(options.pop("tool_choice", None), tools)
        tools = tools if choice else []
        if tools:
            if options.get("structured_outputs") is not None:
                raise InvalidInput("tools and structured_outputs cannot be asked for in one call: give one of them")
            options["structured_outputs"] = constraint(tools, choice or "auto")
        own = {name: getattr(self, name) for name in (*_SAMPLING, *_REUSE)}
        defaults = {name: value for name, value in own.items() if value is not None}
        builder = PromptBuilder(self._findable(options.get("namespace", self.namespace)))
        prompt = builder.build(messages, tools)
        stops = self.stop if stop is None else stop
        if stops:
            options["stop"] = stops
        return _Call(prompt, {**defaults, **options}, AnswerReader(self._model_name, tools, builder.notes))

    @property
    def recent_chunks(self) -> RecentChunks:
        return self.recent.of(self.namespace)

    def _findable(self, namespace: str | None) -> RecentChunks | None:
        return self.recent.of(namespace) if self.recover_chunks else None

    @property
    def _llm_type(self) -> str:
        return "cachecraft"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        own = {name: getattr(self, name) for name in (*_SAMPLING, *_REUSE, "stop", "recover_chunks", "engine_options")}
        return {"model": self._model_name, **own}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        stops = self.stop if stop is None else stop
        params = super()._get_ls_params(stop=[stops] if isinstance(stops, str) else stops, **kwargs)
        params["ls_provider"] = PROVIDER
        return params


def _result(call: _Call, answer: Answer) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=call.reader.whole(answer))])


def _pieces(call: _Call, delta: Delta) -> Iterator[ChatGenerationChunk]:
    piece = call.reader.piece(delta.text)
    if piece is not None:
        yield ChatGenerationChunk(message=piece)
    if delta.answer is not None:
        yield ChatGenerationChunk(message=call.reader.last(delta.answer))
