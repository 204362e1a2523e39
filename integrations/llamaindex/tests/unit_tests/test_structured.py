"""Answers as pydantic models, by guided JSON."""

from __future__ import annotations

import pytest
from llama_index.core.base.llms.types import ChatMessage, CitableBlock, TextBlock
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate
from llama_index.core.types import PydanticProgramMode
from llama_index.llms.cachecraft import Cachecraft
from pydantic import BaseModel

from cachecraft_rag import chunk_id
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.testing import FakeEngine


class Price(BaseModel):
    """A price."""

    item: str
    pounds: int


PROMPT = PromptTemplate("A {thing} costs 14 pounds.")
EXPECTED = Price(item="some item", pounds=14)


async def test_predictions(llm, engine):
    assert llm.structured_predict(Price, PROMPT, thing="zinc anode") == EXPECTED
    sent = engine.requests[-1]
    assert sent.options["structured_outputs"] == {"json": Price.model_json_schema(), "disable_any_whitespace": True}
    assert sent.prompt.text.startswith("A zinc anode costs 14 pounds.\n\nAnswer with a JSON object")
    assert '"pounds"' in sent.prompt.text
    assert await llm.astructured_predict(Price, PROMPT, thing="anode") == EXPECTED


async def test_an_abandoned_stream_ends_its_request(llm, engine):
    stream = await llm.astream_structured_predict(Price, PROMPT, thing="anode")
    await anext(stream)
    assert engine.running == 1
    await stream.aclose()
    assert (engine.running, engine.aborted) == (0, 1)


async def test_streams_grow_and_end_whole(llm):
    found = list(llm.stream_structured_predict(Price, PROMPT, thing="anode"))
    assert len(found) > 2
    assert found[-1] == EXPECTED
    assert isinstance(found[-1], Price)
    stream = await llm.astream_structured_predict(Price, PROMPT, thing="anode")
    assert [one async for one in stream][-1] == EXPECTED


def test_keywords_for_the_llm(llm, engine):
    llm.structured_predict(Price, PROMPT, {"max_tokens": 99}, thing="anode")
    assert engine.requests[-1].options["max_tokens"] == 99


async def test_a_cut_answer_says_so(llm):
    for cut in ({"max_tokens": 2}, {"max_tokens": 1}):
        with pytest.raises(InvalidInput, match="no Price; it was cut off, raise max_tokens"):
            llm.structured_predict(Price, PROMPT, cut, thing="anode")
        with pytest.raises(InvalidInput, match="raise max_tokens"):
            list(llm.stream_structured_predict(Price, PROMPT, cut, thing="anode"))


def test_other_program_modes_are_llama_indexs(engine):
    llm = Cachecraft(engine=engine, pydantic_program_mode=PydanticProgramMode.FUNCTION)
    assert llm.structured_predict(Price, PROMPT, thing="anode") == EXPECTED
    assert "structural_tag" in engine.requests[-1].options["structured_outputs"]


def test_function_programs_stream(engine):
    llm = Cachecraft(engine=engine, pydantic_program_mode=PydanticProgramMode.FUNCTION)
    assert list(llm.stream_structured_predict(Price, PROMPT, thing="anode"))[-1] == EXPECTED


@pytest.mark.parametrize("call", ["chat", "complete"])
def test_structured_llm(llm, call):
    structured = llm.as_structured_llm(Price)
    text = "It costs 14 pounds."
    response = structured.chat([ChatMessage(content=text)]) if call == "chat" else structured.complete(text)
    assert response.raw == EXPECTED


def test_chunks_stay_chunks(llm, engine):
    blocks = [CitableBlock(title="doc", source=chunk_id("14 pounds"), content="14 pounds"), TextBlock(text="Price?")]
    for _ in range(2):
        llm.structured_predict(Price, ChatPromptTemplate([ChatMessage(blocks=blocks)]))
    assert [chunk.text for chunk in engine.requests[-1].prompt.chunks] == ["14 pounds"]


def test_a_schema_behind_anything_but_a_user_is_a_turn_of_its_own(llm, engine):
    llm.structured_predict(Price, ChatPromptTemplate([ChatMessage(role="system", content="14")]))
    assert [message.role for message in engine.requests[-1].prompt.messages] == ["system", "user"]


def test_answers_that_are_no_instance():
    with pytest.raises(InvalidInput, match=r"'\{\}' is no Price:"):
        Cachecraft(engine=FakeEngine("{}")).structured_predict(Price, PROMPT, thing="anode")
