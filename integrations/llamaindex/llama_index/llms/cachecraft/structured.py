"""Answers that are instances of a pydantic model, by guided decoding."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, MessageRole, TextBlock
from llama_index.core.bridge.pydantic import BaseModel, ValidationError
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events.llm import LLMStructuredPredictEndEvent, LLMStructuredPredictStartEvent
from llama_index.core.llms.llm import LLM
from llama_index.core.program.utils import process_streaming_objects
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.types import PydanticProgramMode

from cachecraft_rag.errors import InvalidInput

M = TypeVar("M", bound=BaseModel)
dispatcher = get_dispatcher(__name__)


def schema_options(output_cls: type[BaseModel]) -> dict[str, Any]:
    """Request options that let nothing but JSON of the model's schema come out."""
    return {"structured_outputs": {"json": output_cls.model_json_schema(), "disable_any_whitespace": True}}


def with_schema(messages: Sequence[ChatMessage], output_cls: type[BaseModel]) -> list[ChatMessage]:
    """The messages with the schema at their end, since what a model may write it should also know."""
    schema = json.dumps(output_cls.model_json_schema(), ensure_ascii=False)
    asked = TextBlock(text=f"\nAnswer with a JSON object of this schema:\n{schema}")
    if not messages or messages[-1].role != MessageRole.USER:
        return [*messages, ChatMessage(role=MessageRole.USER, blocks=[asked])]
    last = messages[-1]
    return [*messages[:-1], last.model_copy(update={"blocks": [*last.blocks, asked]})]


def parse(response: ChatResponse, output_cls: type[M]) -> M:
    """Raises `InvalidInput` where the answer is no whole instance, mostly for want of tokens."""
    text = response.message.content or ""
    try:
        return output_cls.model_validate_json(text)
    except ValidationError as error:
        raw = response.raw or {}
        cut = "; it was cut off, raise max_tokens" if raw.get("finish_reason") == "length" else ""
        raise InvalidInput(f"the answer {text!r:.200} is no {output_cls.__name__}{cut}: {error}") from error


class StructuredPredictions(LLM):
    """The four `..._predict` methods by guided JSON; another `pydantic_program_mode` takes LlamaIndex's own way."""

    def structured_predict(
        self,
        output_cls: type[M],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> M:
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            return cast(M, super().structured_predict(output_cls, prompt, llm_kwargs, **prompt_args))
        messages, options = self._structured(output_cls, prompt, llm_kwargs, prompt_args)
        output = parse(self.chat(messages, **options), output_cls)
        dispatcher.event(LLMStructuredPredictEndEvent(output=output))
        return output

    async def astructured_predict(
        self,
        output_cls: type[M],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> M:
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            return cast(M, await super().astructured_predict(output_cls, prompt, llm_kwargs, **prompt_args))
        messages, options = self._structured(output_cls, prompt, llm_kwargs, prompt_args)
        output = parse(await self.achat(messages, **options), output_cls)
        dispatcher.event(LLMStructuredPredictEndEvent(output=output))
        return output

    def stream_structured_predict(
        self,
        output_cls: type[M],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> Generator[Any, None, None]:
        """What there is so far after each delta, and the whole instance at the end."""
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            yield from super().stream_structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
            return
        messages, options = self._structured(output_cls, prompt, llm_kwargs, prompt_args)
        parts = _Parts(output_cls)
        for response in self.stream_chat(messages, **options):
            yield parts.add(response)
        yield parts.whole()

    async def astream_structured_predict(
        self,
        output_cls: type[M],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None = None,
        **prompt_args: Any,
    ) -> AsyncGenerator[Any, None]:
        if self.pydantic_program_mode != PydanticProgramMode.DEFAULT:
            return await super().astream_structured_predict(output_cls, prompt, llm_kwargs, **prompt_args)
        messages, options = self._structured(output_cls, prompt, llm_kwargs, prompt_args)
        stream = await self.astream_chat(messages, **options)

        async def generate() -> AsyncGenerator[Any, None]:
            parts = _Parts(output_cls)
            async with aclosing(stream):
                async for response in stream:
                    yield parts.add(response)
            yield parts.whole()

        return generate()

    def _structured(
        self,
        output_cls: type[BaseModel],
        prompt: BasePromptTemplate,
        llm_kwargs: dict[str, Any] | None,
        prompt_args: dict[str, Any],
    ) -> tuple[list[ChatMessage], dict[str, Any]]:
        dispatcher.event(
            LLMStructuredPredictStartEvent(output_cls=output_cls, template=prompt, template_args=prompt_args)
        )
        messages = self._extend_messages(prompt.format_messages(llm=self, **prompt_args))
        return with_schema(messages, output_cls), {**schema_options(output_cls), **(llm_kwargs or {})}


class _Parts:
    """Partial objects of one streamed answer."""

    def __init__(self, output_cls: type[BaseModel]) -> None:
        self._output_cls = output_cls
        self._last: list[Any] | None = None
        self._response: ChatResponse | None = None

    def add(self, response: ChatResponse) -> Any:
        self._response = response
        found = process_streaming_objects(response, self._output_cls, self._last)
        self._last = found if isinstance(found, list) else [found]
        return found

    def whole(self) -> BaseModel:
        assert self._response is not None
        output = parse(self._response, self._output_cls)
        dispatcher.event(LLMStructuredPredictEndEvent(output=output))
        return output
