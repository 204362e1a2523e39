"""Answers as objects of a schema: what is asked of the engine, and how the answer is read."""

from __future__ import annotations

from operator import itemgetter
from typing import Any, Literal

from langchain_core.output_parsers import (
    BaseOutputParser,
    JsonOutputKeyToolsParser,
    JsonOutputParser,
    PydanticOutputParser,
    PydanticToolsParser,
)
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

Method = Literal["json_schema", "function_calling", "json_mode"]
METHODS = ("json_schema", "function_calling", "json_mode")


def json_constraint(schema: Any) -> dict[str, Any]:
    """vLLM's `structured_outputs`: JSON of the schema, or any JSON object; without white space to get lost in."""
    bound = {"json_object": True} if schema is None else {"json": convert_to_json_schema(schema)}
    return {**bound, "disable_any_whitespace": True}


def json_parser(schema: Any) -> BaseOutputParser[Any]:
    return PydanticOutputParser(pydantic_object=schema) if _is_pydantic(schema) else JsonOutputParser()


def call_parser(schema: Any) -> BaseOutputParser[Any]:
    if _is_pydantic(schema):
        return PydanticToolsParser(tools=[schema], first_tool_only=True)
    return JsonOutputKeyToolsParser(key_name=call_name(schema), first_tool_only=True)


def call_name(schema: Any) -> str:
    return str(convert_to_openai_tool(schema)["function"]["name"])


def parsed(model: Runnable[Any, Any], parser: BaseOutputParser[Any], include_raw: bool) -> Runnable[Any, Any]:
    """`include_raw`: a mapping with `raw`, `parsed` and `parsing_error`, which is then not raised."""
    if not include_raw:
        return model | parser
    read = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=model) | read.with_fallbacks([failed], exception_key="parsing_error")


def traced(schema: Any, method: str) -> dict[str, Any]:
    """The keyword that tells LangChain's tracers of the schema."""
    return {"ls_structured_output_format": {"kwargs": {"method": method}, "schema": schema}} if schema else {}


def _is_pydantic(schema: Any) -> bool:
    return isinstance(schema, type) and is_basemodel_subclass(schema)
