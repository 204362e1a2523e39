"""Responses of LLMs that know nothing of chunks: the nodes' texts in one string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llama_index.core.bridge.pydantic import BaseModel
from llama_index.core.llms.llm import LLM
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.types import RESPONSE_TEXT_TYPE

from cachecraft_rag.prompt import JOINER


def plain_response(
    llm: LLM,
    template: BasePromptTemplate,
    query_str: str,
    texts: Sequence[str],
    streaming: bool,
    output_cls: type[BaseModel] | None,
    arguments: Mapping[str, Any],
) -> RESPONSE_TEXT_TYPE:
    given = {**arguments, "query_str": query_str, "context_str": JOINER.join(texts)}
    response: RESPONSE_TEXT_TYPE
    if output_cls is not None:
        response = llm.structured_predict(output_cls, template, **given)
    else:
        response = llm.stream(template, **given) if streaming else llm.predict(template, **given)
    return response


async def aplain_response(
    llm: LLM,
    template: BasePromptTemplate,
    query_str: str,
    texts: Sequence[str],
    streaming: bool,
    output_cls: type[BaseModel] | None,
    arguments: Mapping[str, Any],
) -> RESPONSE_TEXT_TYPE:
    given = {**arguments, "query_str": query_str, "context_str": JOINER.join(texts)}
    response: RESPONSE_TEXT_TYPE
    if output_cls is not None:
        response = await llm.astructured_predict(output_cls, template, **given)
    else:
        response = await llm.astream(template, **given) if streaming else await llm.apredict(template, **given)
    return response
