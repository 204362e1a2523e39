"""The response synthesizer that hands nodes over as chunks."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, get_args

from llama_index.core.base.llms.types import ChatMessage, ChatResponse
from llama_index.core.base.response.schema import RESPONSE_TYPE, AsyncStreamingResponse
from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.callbacks.base import CallbackManager
from llama_index.core.instrumentation import get_dispatcher  # type: ignore[attr-defined]
from llama_index.core.instrumentation.events.synthesis import GetResponseEndEvent, GetResponseStartEvent
from llama_index.core.llms.llm import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.default_prompt_selectors import DEFAULT_REFINE_PROMPT_SEL, DEFAULT_TEXT_QA_PROMPT_SEL
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.response_synthesizers.base import BaseSynthesizer, QueryTextType
from llama_index.core.schema import NodeWithScore
from llama_index.core.types import RESPONSE_TEXT_TYPE
from llama_index.llms.cachecraft.llm import Cachecraft
from llama_index.llms.cachecraft.nodes import chunk_of
from llama_index.llms.cachecraft.plain import aplain_response, plain_response
from llama_index.llms.cachecraft.rounds import Overflow, Round, Rounds
from llama_index.llms.cachecraft.structured import parse, schema_options, with_schema

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput

dispatcher = get_dispatcher(__name__)
logger = logging.getLogger(__name__)

METADATA_KEY = "cachecraft"  # of a response's metadata, beside the nodes' ids


class ChunkSynthesizer(BaseSynthesizer):
    """Answers over the retrieved nodes, each a chunk, in retrieval order.

    `overflow`: what happens where not all nodes fit into the context beside the answer. "drop" leaves out whole nodes
    from the end and says so, "raise" raises `InvalidInput`, "refine" asks again over the rest with `refine_template`.
    Any other LLM than Cachecraft gets all nodes as plain text. With `streaming` an `output_cls` streams as JSON.

    A response's `metadata["cachecraft"]` has the "reports" and "usages" of the calls, and the ids of "dropped" chunks;
    of a stream once it is read.
    """

    def __init__(
        self,
        llm: LLM | None = None,
        *,
        text_qa_template: BasePromptTemplate | None = None,
        refine_template: BasePromptTemplate | None = None,
        overflow: Overflow = "drop",
        streaming: bool = False,
        output_cls: type[BaseModel] | None = None,
        empty_response: str | None = None,
        callback_manager: CallbackManager | None = None,
    ) -> None:
        if overflow not in get_args(Overflow):
            raise InvalidInput(f"overflow={overflow!r} is not one of {', '.join(get_args(Overflow))}")
        super().__init__(
            llm=llm,
            callback_manager=callback_manager,
            streaming=streaming,
            output_cls=output_cls,
            empty_response=empty_response,
        )
        self._text_qa_template: BasePromptTemplate = text_qa_template or DEFAULT_TEXT_QA_PROMPT_SEL
        self._refine_template: BasePromptTemplate = refine_template or DEFAULT_REFINE_PROMPT_SEL
        self._overflow = overflow

    def synthesize(
        self,
        query: QueryTextType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        outcome = Outcome()
        response = super().synthesize(
            query, nodes, additional_source_nodes, ordered=nodes, outcome=outcome, **response_kwargs
        )
        return outcome.attached_to(response)

    async def asynthesize(
        self,
        query: QueryTextType,
        nodes: list[NodeWithScore],
        additional_source_nodes: Sequence[NodeWithScore] | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TYPE:
        outcome = Outcome()
        response = await super().asynthesize(
            query, nodes, additional_source_nodes, ordered=nodes, outcome=outcome, **response_kwargs
        )
        return outcome.attached_to(response)

    def get_response(
        self,
        query_str: str,
        text_chunks: Sequence[str],
        ordered: Sequence[NodeWithScore] | None = None,
        outcome: Outcome | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TEXT_TYPE:
        """`ordered`: the nodes of `text_chunks`, for the ids of their documents. More keywords go to the templates."""
        dispatcher.event(GetResponseStartEvent(query_str=query_str, text_chunks=list(text_chunks)))
        response: RESPONSE_TEXT_TYPE
        if self._chunk_llm is None:
            response = plain_response(
                self._llm,
                self._text_qa_template,
                query_str,
                text_chunks,
                self._streaming,
                self._output_cls,
                response_kwargs,
            )
        else:
            chunks = _chunks(text_chunks, ordered)
            rounds = self._rounds(self._chunk_llm, query_str, chunks, response_kwargs)
            response = self._answer(self._chunk_llm, rounds, Outcome() if outcome is None else outcome)
        dispatcher.event(GetResponseEndEvent())
        return response

    async def aget_response(
        self,
        query_str: str,
        text_chunks: Sequence[str],
        ordered: Sequence[NodeWithScore] | None = None,
        outcome: Outcome | None = None,
        **response_kwargs: Any,
    ) -> RESPONSE_TEXT_TYPE:
        dispatcher.event(GetResponseStartEvent(query_str=query_str, text_chunks=list(text_chunks)))
        response: RESPONSE_TEXT_TYPE
        if self._chunk_llm is None:
            response = await aplain_response(
                self._llm,
                self._text_qa_template,
                query_str,
                text_chunks,
                self._streaming,
                self._output_cls,
                response_kwargs,
            )
        else:
            await self._chunk_llm.aengine()  # it may have to start, which would block the loop below
            chunks = _chunks(text_chunks, ordered)
            rounds = self._rounds(self._chunk_llm, query_str, chunks, response_kwargs)
            response = await self._aanswer(self._chunk_llm, rounds, Outcome() if outcome is None else outcome)
        dispatcher.event(GetResponseEndEvent())
        return response

    def _prepare_response_output(
        self, response_str: RESPONSE_TEXT_TYPE | None, source_nodes: list[NodeWithScore]
    ) -> RESPONSE_TYPE:
        response = super()._prepare_response_output(response_str, source_nodes)
        if isinstance(response, AsyncStreamingResponse):
            return ClosingResponse(response.response_gen, response.source_nodes, response.metadata)
        return response

    @property
    def _chunk_llm(self) -> Cachecraft | None:
        llm = self._llm.llm if isinstance(self._llm, StructuredLLM) else self._llm
        return llm if isinstance(llm, Cachecraft) else None

    @property
    def _answer_cls(self) -> type[BaseModel] | None:
        return self._llm.output_cls if isinstance(self._llm, StructuredLLM) else self._output_cls

    def _get_prompts(self) -> PromptDictType:
        return {"text_qa_template": self._text_qa_template, "refine_template": self._refine_template}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._text_qa_template = prompts.get("text_qa_template", self._text_qa_template)
        self._refine_template = prompts.get("refine_template", self._refine_template)

    def _rounds(self, llm: Cachecraft, query_str: str, chunks: Sequence[Chunk], arguments: dict[str, Any]) -> Rounds:
        if self._streaming and llm.output_parser is not None:
            raise InvalidInput("an output parser cannot read a stream: make the synthesizer with streaming=False")
        output_cls = self._answer_cls

        def finish(messages: list[ChatMessage]) -> list[ChatMessage]:
            if llm.output_parser is not None:
                messages = llm.output_parser.format_messages(messages)
            messages = llm._extend_messages(messages)
            return messages if output_cls is None else with_schema(messages, output_cls)

        return Rounds(
            chunks,
            self._text_qa_template,
            self._refine_template,
            {**arguments, "llm": llm, "query_str": query_str},
            overflow=self._overflow,
            room=llm.engine.max_model_len - llm.max_tokens,
            count=llm.count_tokens,
            finish=finish,
        )

    def _answer(self, llm: Cachecraft, rounds: Rounds, outcome: Outcome) -> RESPONSE_TEXT_TYPE:
        answer: str | None = None
        while True:
            turn = rounds.next(answer)
            if turn.last and self._streaming:
                return _texts(llm.stream_chat(turn.messages, **self._options), turn, outcome)
            response = llm.chat(turn.messages, **self._options)
            outcome.add(response, turn)
            answer = response.message.content or ""
            if turn.last:
                return self._parsed(llm, response)

    async def _aanswer(self, llm: Cachecraft, rounds: Rounds, outcome: Outcome) -> RESPONSE_TEXT_TYPE:
        answer: str | None = None
        while True:
            turn = rounds.next(answer)
            if turn.last and self._streaming:
                return _atexts(await llm.astream_chat(turn.messages, **self._options), turn, outcome)
            response = await llm.achat(turn.messages, **self._options)
            outcome.add(response, turn)
            answer = response.message.content or ""
            if turn.last:
                return self._parsed(llm, response)

    @property
    def _options(self) -> dict[str, Any]:
        return {} if self._answer_cls is None else schema_options(self._answer_cls)

    def _parsed(self, llm: Cachecraft, response: ChatResponse) -> RESPONSE_TEXT_TYPE:
        if self._answer_cls is None:
            text = response.message.content or ""
            return str(llm.output_parser.parse(text)) if llm.output_parser is not None else text
        output = parse(response, self._answer_cls)
        return output.model_dump_json() if isinstance(self._llm, StructuredLLM) else output


class ClosingResponse(AsyncStreamingResponse):
    """One whose `async_response_gen()`, when it is closed, ends the request in the engine."""

    async def _yield_response(self) -> AsyncGenerator[str, None]:
        texts: Any = super()._yield_response()
        try:
            async for text in texts:
                yield text
        finally:
            await texts.aclose()
            await self.response_gen.aclose()

    async def async_response_gen(self) -> AsyncGenerator[str, None]:
        async with aclosing(self._yield_response()) as texts:
            async for text in texts:
                yield text


class Outcome:
    """What the calls of one response came to."""

    def __init__(self) -> None:
        self._data: dict[str, list[Any]] = {"reports": [], "usages": [], "dropped": []}

    def add(self, response: ChatResponse, turn: Round) -> None:
        report = response.additional_kwargs["report"]
        if turn.dropped:
            ids = [chunk.id for chunk in turn.dropped]
            warning = f"{len(ids)} chunks were left out, since the context is full: {', '.join(ids)}"
            logger.warning(warning)
            if report is not None:
                report = replace(report, warnings=(*report.warnings, warning))
            self._data["dropped"] += ids
        self._data["reports"].append(report)
        self._data["usages"].append((response.raw or {})["usage"])

    def attached_to(self, response: RESPONSE_TYPE) -> RESPONSE_TYPE:
        if response.metadata is not None:
            response.metadata[METADATA_KEY] = self._data
        return response


def get_chunk_synthesizer(llm: LLM | None = None, **options: Any) -> ChunkSynthesizer:
    """A `ChunkSynthesizer` with its options, as `get_response_synthesizer` makes LlamaIndex's own."""
    return ChunkSynthesizer(llm, **options)


def _chunks(texts: Sequence[str], nodes: Sequence[NodeWithScore] | None) -> list[Chunk]:
    if nodes is None:
        return [Chunk(text) for text in texts if text.strip()]
    return [chunk for node in nodes if (chunk := chunk_of(node.node)) is not None]


def _texts(responses: Generator[ChatResponse, None, None], turn: Round, outcome: Outcome) -> Generator[str, None, None]:
    try:
        for response in responses:
            if response.raw is not None:
                outcome.add(response, turn)
            yield response.delta or ""
    finally:
        responses.close()


async def _atexts(
    responses: AsyncGenerator[ChatResponse, None], turn: Round, outcome: Outcome
) -> AsyncGenerator[str, None]:
    try:
        async for response in responses:
            if response.raw is not None:
                outcome.add(response, turn)
            yield response.delta or ""
    finally:
        await responses.aclose()
