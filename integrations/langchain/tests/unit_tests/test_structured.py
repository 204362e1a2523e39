"""with_structured_output: what the engine is bound to, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cachecraft import ChatCachecraft
from langchain_core.exceptions import OutputParserException
from langchain_core.messages import AIMessage
from pydantic import BaseModel
from typing_extensions import TypedDict

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.testing import FakeEngine


class Person(BaseModel):
    """A person."""

    name: str
    age: int


class PersonDict(TypedDict):
    """A person."""

    name: str
    age: int


MADE = {"name": "Ada", "age": 36}


@pytest.mark.parametrize("method", ["json_schema", "json_mode", "function_calling"])
@pytest.mark.parametrize("schema", [Person, PersonDict, Person.model_json_schema()])
async def test_methods_and_schemas(llm: ChatCachecraft, engine: FakeEngine, method: Any, schema: Any) -> None:
    model = llm.with_structured_output(schema, method=method)
    expected = Person(**MADE) if schema is Person else MADE
    question = "'Ada' is 36."
    assert model.invoke(question) == expected
    assert await model.ainvoke(question) == expected
    assert list(model.stream(question))[-1] == expected
    bound = engine.requests[-1].options["structured_outputs"]
    if method == "function_calling":
        assert set(bound) == {"structural_tag"}
    else:
        assert bound["disable_any_whitespace"] is True
        assert set(bound["json"]["properties"]) == {"name", "age"}


def test_json_mode_without_a_schema(engine: FakeEngine) -> None:
    llm = ChatCachecraft(engine=FakeEngine('{"a": 1}'))
    assert llm.with_structured_output(method="json_mode").invoke("hi") == {"a": 1}
    with pytest.raises(InvalidInput, match="needs a schema"):
        llm.with_structured_output()


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_include_raw(llm: ChatCachecraft, method: Any) -> None:
    both = llm.with_structured_output(Person, include_raw=True, method=method).invoke("'Ada' is 36.")
    assert both["parsed"] == Person(**MADE)
    assert isinstance(both["raw"], AIMessage)
    assert both["parsing_error"] is None


def test_what_cannot_be_read_is_raised_or_returned() -> None:
    llm = ChatCachecraft(engine=FakeEngine('{"name": "Ad'))
    with pytest.raises(OutputParserException):
        llm.with_structured_output(Person).invoke("hi")
    both = llm.with_structured_output(Person, include_raw=True).invoke("hi")
    assert both["parsed"] is None
    assert isinstance(both["parsing_error"], OutputParserException)


def test_what_is_not_possible_is_named(llm: ChatCachecraft) -> None:
    with pytest.raises(InvalidInput, match="'xml'"):
        llm.with_structured_output(Person, method="xml")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'tols'"):
        llm.with_structured_output(Person, tols=[])
