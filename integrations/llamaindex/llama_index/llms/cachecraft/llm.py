"""The LLM class."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from llama_index.core.base.llms.types import (
    ChatMessage,
    ChatResponse,
    ChatResponseAsyncGen,
    ChatResponseGen,
    CompletionResponse,
    CompletionResponseAsyncGen,
    CompletionResponseGen,
    LLMMetadata,
)
from llama_index.core.bridge.pydantic import ConfigDict, Field, PrivateAttr
from llama_index.core.llms.callbacks import llm_chat_callback, llm_completion_callback
from llama_index.llms.cachecraft.engines import EngineHolder
from llama_index.llms.cachecraft.messages import read_messages
from llama_index.llms.cachecraft.requests import Request, plain_request, read_request
from llama_index.llms.cachecraft.responses import Reply, as_completion
from llama_index.llms.cachecraft.streams import aclosing, closing, opened
from llama_index.llms.cachecraft.structured import StructuredPredictions
from llama_index.llms.cachecraft.tool_calling import ToolCalling

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.interface import Engine
from cachecraft_rag.recover import RecentByNamespace, RecentChunks


class Cachecraft(StructuredPredictions, ToolCalling):
    """An embedded vLLM that reuses the KV of the chunks in its messages.

    A `CitableBlock` is a chunk if its `source` is `chunk_id` of its text; its title is the document's id. The engine is
    the one given, or is started when it is first needed; only in the second case does `close` end it.

    Every response has `raw["usage"]`, and in `additional_kwargs["report"]` the engine's report, None where no chunk
    was sent; of a stream the last response has them.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")

    model: str = Field(description="Name or folder of a Hugging Face model.")
    max_tokens: int = Field(default=256, gt=0, description="Tokens that an answer may have.")
    temperature: float = Field(default=0.0, ge=0.0, description="0 is greedy.")
    stop: list[str] = Field(default_factory=list, description="Strings that end an answer.")
    policy: str | None = Field(default=None, description="Which tokens of reused chunks are recomputed.")
    recompute_ratio: float | None = Field(default=None, ge=0.0, le=1.0, description="How large a share of them.")
    namespace: str | None = Field(default=None, description="Tenant, who shares caches with no other.")
    additional_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="Sent with every request: further fields of vLLM's SamplingParams."
    )
    engine_options: dict[str, Any] = Field(
        default_factory=dict, description="Fields of EngineConfig for the engine that is started here."
    )
    recover_chunks: bool = Field(
        default=False, description="Find the chunks retrieved lately in plain text, for engines that flatten them."
    )
    _holder: EngineHolder = PrivateAttr()
    _recent: RecentByNamespace = PrivateAttr(default_factory=RecentByNamespace)

    def __init__(self, model: str = "", *, engine: Engine | None = None, **options: Any) -> None:
        if engine is not None and (model or options.get("engine_options")):
            raise InvalidInput("give either engine=, or model= and engine_options= for one to be started")
        own_templates = sorted({"messages_to_prompt", "completion_to_prompt", "query_wrapper_prompt"} & set(options))
        if own_templates:
            raise InvalidInput(
                f"{', '.join(own_templates)}: prompts are rendered with the model's own chat template; leave it out"
            )
        holder = EngineHolder(engine, model, options.get("engine_options") or {})
        super().__init__(**{**options, "model": model if engine is None else engine.model_name})
        self._holder = holder

    @classmethod
    def class_name(cls) -> str:
        return "Cachecraft"

    @property
    def engine(self) -> Engine:
        """The engine, which is started if need be."""
        return self._holder.get()

    async def aengine(self) -> Engine:
        return await self._holder.aget()

    @property
    def metadata(self) -> LLMMetadata:
        """Without starting the engine, unless neither the options nor the model's config have a context length."""
        return LLMMetadata(
            context_window=self._holder.context_length(),
            num_output=self.max_tokens,
            is_chat_model=True,
            is_function_calling_model=True,
            model_name=self.model,
        )

    def to_payload(self) -> dict[str, Any]:
        """For events; unlike `metadata` it never starts the engine."""
        return {
            "class_name": self.class_name(),
            "model_name": self.model,
            "context_window": self._holder.max_model_len,
            "num_output": self.max_tokens,
            "is_chat_model": True,
        }

    def remember(self, chunks: Iterable[Chunk]) -> None:
        """Chunks that `recover_chunks` finds again in plain text, in requests of the same namespace."""
        self._recent_of(self._defaults()).remember(chunks)

    def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """The tokens of the prompt that the messages become, template included."""
        return self.engine.count_tokens(read_messages(messages).prompt)

    def close(self) -> None:
        self._holder.close()

    async def aclose(self) -> None:
        await self._holder.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return copy.copy(self)  # copies share the engine

    def __reduce__(self) -> Any:
        raise InvalidInput(
            "a Cachecraft cannot go to another process, since its engine and the caches stay in this one; "
            "make one there, or run without worker processes (num_workers=None)"
        )

    @llm_chat_callback()
    def chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        """Keywords: fields of vLLM's SamplingParams, `policy`, `recompute_ratio`, `min_run`, `reuse`, `namespace`.

        Also `tools` in OpenAI's form, `tool_choice` ("auto", "any" or a name) and `allow_parallel_tool_calls`.
        Raises `InvalidInput` for any other, and for blocks that are not text.
        """
        request = self._request(messages, kwargs)
        return self._reply(request).whole(self.engine.generate(request.prompt, **request.options))

    @closing
    @llm_chat_callback()
    def stream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseGen:
        return self._stream(self._request(messages, kwargs))

    @llm_chat_callback()
    async def achat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponse:
        request = self._request(messages, kwargs)
        engine = await self.aengine()
        return self._reply(request).whole(await engine.agenerate(request.prompt, **request.options))

    @aclosing
    @llm_chat_callback()
    async def astream_chat(self, messages: Sequence[ChatMessage], **kwargs: Any) -> ChatResponseAsyncGen:
        return await self._astream(self._request(messages, kwargs))

    @llm_completion_callback()
    def complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        """The prompt as a user's message; with `formatted=True` as it is, without the model's chat template.

        Special tokens spelled in it are text in both cases.
        """
        request = self._completion_request(prompt, formatted, kwargs)
        return as_completion(self._reply(request).whole(self.engine.generate(request.prompt, **request.options)))

    @closing
    @llm_completion_callback()
    def stream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseGen:
        stream = self._stream(self._completion_request(prompt, formatted, kwargs))
        return (as_completion(response) for response in stream)

    @llm_completion_callback()
    async def acomplete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponse:
        request = self._completion_request(prompt, formatted, kwargs)
        engine = await self.aengine()
        return as_completion(self._reply(request).whole(await engine.agenerate(request.prompt, **request.options)))

    @aclosing
    @llm_completion_callback()
    async def astream_complete(self, prompt: str, formatted: bool = False, **kwargs: Any) -> CompletionResponseAsyncGen:
        stream = await self._astream(self._completion_request(prompt, formatted, kwargs))
        return (as_completion(response) async for response in stream)

    def _request(self, messages: Sequence[ChatMessage], kwargs: Mapping[str, Any]) -> Request:
        options = {**self._defaults(), **kwargs}
        return read_request(messages, options, self._recent_of(options) if self.recover_chunks else None)

    def _completion_request(self, prompt: str, formatted: bool, kwargs: Mapping[str, Any]) -> Request:
        if not formatted:
            return self._request([ChatMessage(content=prompt)], kwargs)
        options = {**self._defaults(), **kwargs}
        return plain_request(prompt, options, self._recent_of(options) if self.recover_chunks else None)

    def _recent_of(self, options: Mapping[str, Any]) -> RecentChunks:
        return self._recent.of(options.get("namespace"))

    def _defaults(self) -> dict[str, Any]:
        optional = {
            "stop": self.stop or None,
            "policy": self.policy,
            "recompute_ratio": self.recompute_ratio,
            "namespace": self.namespace,
        }
        given = {name: value for name, value in optional.items() if value is not None}
        return {"max_tokens": self.max_tokens, "temperature": self.temperature, **given, **self.additional_kwargs}

    def _reply(self, request: Request) -> Reply:
        return Reply(self.model, request.tools, request.notes)

    def _stream(self, request: Request) -> Generator[ChatResponse, None, None]:
        stream = opened(self.engine.stream(request.prompt, **request.options))
        reply = self._reply(request)
        return (reply.add(delta) for delta in stream)

    async def _astream(self, request: Request) -> AsyncGenerator[ChatResponse, None]:
        engine = await self.aengine()
        stream = opened(engine.astream(request.prompt, **request.options))
        reply = self._reply(request)
        return (reply.add(delta) async for delta in stream)
