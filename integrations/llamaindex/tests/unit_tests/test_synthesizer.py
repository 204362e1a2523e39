"""The synthesizer: nodes travel as chunks, in every mode."""

from __future__ import annotations

import logging

import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.response.schema import AsyncStreamingResponse, PydanticResponse, StreamingResponse
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.llms import MockLLM
from llama_index.core.prompts import ChatPromptTemplate, PromptTemplate, RichPromptTemplate
from llama_index.core.schema import TextNode
from llama_index.core.types import BaseOutputParser
from llama_index.llms.cachecraft import Cachecraft, ChunkSynthesizer, get_chunk_synthesizer
from pydantic import BaseModel

from cachecraft_rag import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.testing import FakeEngine

TEMPLATE = PromptTemplate("Read:\n{context_str}\n\nQ: {query_str}")
REFINE = PromptTemplate("Had: {existing_answer}\nRead:\n{context_msg}\n\nQ: {query_str}")


class Price(BaseModel):
    pounds: int


def shape(request) -> list[str]:
    return [f"[{part.text}]" if isinstance(part, Chunk) else part.text for part in request.prompt.parts]


@pytest.fixture
def synthesizer(llm) -> ChunkSynthesizer:
    return get_chunk_synthesizer(llm, text_qa_template=TEMPLATE, refine_template=REFINE)


def test_nodes_are_chunks_in_retrieval_order(synthesizer, engine, scored):
    nodes = scored("one two", "three", "four five")
    response = synthesizer.synthesize("why?", nodes)
    assert shape(engine.requests[-1]) == ["Read:\n", "[one two]", "[three]", "[four five]", "\n\nQ: why?"]
    assert [chunk.document_id for chunk in engine.requests[-1].prompt.chunks] == ["doc"] * 3
    assert response.source_nodes == nodes
    assert response.response.endswith("Q: why?")
    assert set(response.metadata) == {"doc-0", "doc-1", "doc-2", "cachecraft"}


def test_permuted_nodes_are_all_hits(synthesizer, scored):
    nodes = scored("one two", "three", "four five")
    synthesizer.synthesize("why?", nodes)
    [report] = synthesizer.synthesize("what?", nodes[::-1]).metadata["cachecraft"]["reports"]
    assert (report.hits, report.misses, report.refused) == (3, 0, 0)


def test_what_is_sent_is_what_the_llm_would_see(synthesizer, engine, scored):
    nodes = scored("one", metadata={"title": "T", "date": "1.1."}, excluded_llm_metadata_keys=["date"])
    synthesizer.synthesize("why?", nodes)
    assert engine.requests[-1].prompt.chunks[0].text == "title: T\n\none"


def test_the_default_prompt(llm, engine, scored):
    ChunkSynthesizer(llm).synthesize("why?", scored("one", "two"))
    system, user = engine.requests[-1].prompt.messages
    assert system.parts[0].text.startswith("You are an expert Q&A system")
    assert [part.text for part in user.parts[1:3]] == ["one", "two"]
    assert "Query: why?" in user.parts[3].text


async def test_async(synthesizer, engine, scored):
    response = await synthesizer.asynthesize("why?", scored("one", "two"))
    assert response.response == str(synthesizer.synthesize("why?", scored("one", "two")))
    assert shape(engine.requests[0]) == shape(engine.requests[1])
    assert len(response.metadata["cachecraft"]["reports"]) == 1


async def test_streams(llm, engine, scored):
    whole = str(ChunkSynthesizer(llm, text_qa_template=TEMPLATE).synthesize("why?", scored("one")))
    synthesizer = ChunkSynthesizer(llm, text_qa_template=TEMPLATE, streaming=True)
    response = synthesizer.synthesize("why?", scored("one"))
    assert isinstance(response, StreamingResponse)
    deltas = list(response.response_gen)
    assert len(deltas) > 2
    assert "".join(deltas) == whole
    assert response.metadata["cachecraft"]["reports"][0].hits == 1
    response = await synthesizer.asynthesize("why?", scored("one"))
    assert isinstance(response, AsyncStreamingResponse)
    assert "".join([delta async for delta in response.async_response_gen()]) == whole
    assert response.metadata["cachecraft"]["usages"][0]["completion_tokens"] > 2
    assert (engine.running, engine.aborted) == (0, 0)


async def test_abandoned_streams_end_their_request(llm, engine, scored):
    synthesizer = ChunkSynthesizer(llm, streaming=True)
    stream = synthesizer.synthesize("why?", scored("one")).response_gen
    next(stream)
    assert engine.running == 1
    stream.close()
    assert (engine.running, engine.aborted) == (0, 1)
    stream = (await synthesizer.asynthesize("why?", scored("one"))).response_gen
    await anext(stream)
    await stream.aclose()
    assert (engine.running, engine.aborted) == (0, 2)
    stream = (await synthesizer.asynthesize("why?", scored("one"))).async_response_gen()
    await anext(stream)
    assert engine.running == 1
    await stream.aclose()
    assert (engine.running, engine.aborted) == (0, 3)


async def test_no_nodes(llm, engine):
    assert str(ChunkSynthesizer(llm, empty_response="Nothing.").synthesize("why?", [])) == "Nothing."
    assert str(await ChunkSynthesizer(llm).asynthesize("why?", [])) == "Empty Response"
    assert not engine.requests


def test_nodes_without_text_are_left_out(synthesizer, engine, scored):
    synthesizer.synthesize("why?", scored("one", "  "))
    assert [chunk.text for chunk in engine.requests[-1].prompt.chunks] == ["one"]


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        RichPromptTemplate("Read:\n{{ context_str }}\n\nQ: {{ query_str }}"),
        ChatPromptTemplate.from_messages([("user", "Read:\n{context_str}\n\nQ: {query_str}")]),
        PromptTemplate("Read:\n{text}\n\nQ: {q}", template_var_mappings={"context_str": "text", "query_str": "q"}),
        PromptTemplate("{verb}:\n{context_str}\n\nQ: {query_str}").partial_format(verb="Read"),
    ],
)
def test_templates_of_every_kind(synthesizer, engine, scored, template):
    synthesizer.update_prompts({"text_qa_template": template})
    synthesizer.synthesize("why?", scored("a {curly} chunk", "two"))
    assert shape(engine.requests[-1]) == ["Read:\n", "[a {curly} chunk]", "[two]", "\n\nQ: why?"]


def test_prompts_can_be_updated(synthesizer, engine, scored):
    assert set(synthesizer.get_prompts()) == {"text_qa_template", "refine_template"}
    synthesizer.update_prompts({"text_qa_template": PromptTemplate("Q: {query_str} {context_str}")})
    synthesizer.synthesize("why?", scored("one"))
    assert shape(engine.requests[-1]) == ["Q: why? ", "[one]"]


def test_a_template_without_a_place_for_chunks(llm, scored):
    synthesizer = ChunkSynthesizer(llm, text_qa_template=PromptTemplate("Q: {query_str}"))
    with pytest.raises(InvalidInput, match=r"\{context_str\}"):
        synthesizer.synthesize("why?", scored("one"))


def test_more_template_variables(llm, engine, scored):
    synthesizer = ChunkSynthesizer(llm, text_qa_template=PromptTemplate("{tone} {context_str} {query_str}"))
    synthesizer.synthesize("why?", scored("one"), tone="Calm:")
    assert shape(engine.requests[-1])[0] == "Calm: "


def test_the_llms_system_prompt(engine, scored):
    llm = Cachecraft(engine=engine, system_prompt="Be brief.")
    ChunkSynthesizer(llm, text_qa_template=TEMPLATE).synthesize("why?", scored("one"))
    assert shape(engine.requests[-1])[0] == "Be brief."


def small(answer=None, room: int = 30) -> Cachecraft:
    """A context with room for `room` words beside an answer of 10."""
    return Cachecraft(engine=FakeEngine(answer, max_model_len=room + 10), max_tokens=10)


LONG = ["a a a a a a a a", "b b b b b b b b", "c c c c c c c c", "d d d d d d d d"]


def test_whole_nodes_are_dropped_and_it_is_said(scored, caplog):
    llm = small()
    nodes = scored(*LONG)
    with caplog.at_level(logging.WARNING):
        response = ChunkSynthesizer(llm, text_qa_template=TEMPLATE).synthesize("why?", nodes)
    assert [chunk.text for chunk in llm.engine.requests[-1].prompt.chunks] == LONG[:2]
    dropped = [Chunk(text).id for text in LONG[2:]]
    assert response.metadata["cachecraft"]["dropped"] == dropped
    [report] = response.metadata["cachecraft"]["reports"]
    assert "2 chunks were left out" in report.warnings[-1]
    assert dropped[0] in caplog.text
    assert llm.engine.requests[-1].options["max_tokens"] == 10


def test_what_is_dropped_from_a_plain_request_is_said_too(scored, caplog):
    llm = small()
    llm.additional_kwargs = {"reuse": False}
    response = ChunkSynthesizer(llm, text_qa_template=TEMPLATE).synthesize("why?", scored(*LONG))
    assert response.metadata["cachecraft"]["reports"] == [None]
    assert len(response.metadata["cachecraft"]["dropped"]) == 2
    assert "2 chunks were left out" in caplog.text


def test_output_parsers(engine, scored):
    class Upper(BaseOutputParser):
        def parse(self, output):
            return output.upper()

        def format(self, query):
            return query + " In capitals."

    llm = Cachecraft(engine=engine, output_parser=Upper())
    assert str(ChunkSynthesizer(llm, text_qa_template=TEMPLATE).synthesize("why?", scored("one"))).isupper()
    assert shape(engine.requests[-1])[-1].endswith("Q: why? In capitals.")
    with pytest.raises(InvalidInput, match="streaming=False"):
        ChunkSynthesizer(llm, streaming=True).synthesize("why?", scored("one"))


def test_nothing_is_dropped_where_all_fits(synthesizer, scored, caplog):
    response = synthesizer.synthesize("why?", scored(*LONG))
    assert response.metadata["cachecraft"]["dropped"] == []
    assert not caplog.records


def test_overflow_can_raise(scored):
    synthesizer = ChunkSynthesizer(small(), text_qa_template=TEMPLATE, overflow="raise")
    with pytest.raises(InvalidInput, match=r"with 4 of 4 chunks has 4\d tokens, but .* room for 30"):
        synthesizer.synthesize("why?", scored(*LONG))
    assert str(synthesizer.synthesize("why?", scored(LONG[0])))


@pytest.mark.parametrize("overflow", ["drop", "refine"])
def test_a_node_that_never_fits(scored, overflow):
    with pytest.raises(InvalidInput, match="room for 12"):
        ChunkSynthesizer(small(room=12), text_qa_template=TEMPLATE, overflow=overflow).synthesize("why?", scored(*LONG))


def test_unknown_overflow(llm):
    with pytest.raises(InvalidInput, match="'split'"):
        ChunkSynthesizer(llm, overflow="split")


async def test_refine_takes_several_calls(scored):
    llm = small("An answer.")
    synthesizer = ChunkSynthesizer(llm, text_qa_template=TEMPLATE, refine_template=REFINE, overflow="refine")
    response = synthesizer.synthesize("why?", scored(*LONG))
    first, second = llm.engine.requests
    assert shape(first) == ["Read:\n", f"[{LONG[0]}]", f"[{LONG[1]}]", "\n\nQ: why?"]
    assert shape(second) == ["Had: An answer.\nRead:\n", f"[{LONG[2]}]", f"[{LONG[3]}]", "\n\nQ: why?"]
    assert len(response.metadata["cachecraft"]["reports"]) == 2
    assert response.metadata["cachecraft"]["dropped"] == []
    await synthesizer.asynthesize("why?", scored(*LONG))
    assert [shape(request) for request in llm.engine.requests[2:]] == [shape(first), shape(second)]


async def test_refine_streams_the_last_call(scored):
    llm = small("An answer.")
    synthesizer = ChunkSynthesizer(
        llm, text_qa_template=TEMPLATE, refine_template=REFINE, overflow="refine", streaming=True
    )
    response = synthesizer.synthesize("why?", scored(*LONG))
    assert list(response.response_gen) == ["An", " answer.", ""]
    assert len(response.metadata["cachecraft"]["reports"]) == 2
    response = await synthesizer.asynthesize("why?", scored(*LONG))
    assert "".join([delta async for delta in response.response_gen]) == "An answer."


async def test_output_cls(llm, engine, scored):
    synthesizer = ChunkSynthesizer(llm, text_qa_template=TEMPLATE, output_cls=Price)
    response = synthesizer.synthesize("14 pounds?", scored("one", "two"))
    assert isinstance(response, PydanticResponse)
    assert response.response == Price(pounds=14)
    assert [chunk.text for chunk in engine.requests[-1].prompt.chunks] == ["one", "two"]
    assert (await synthesizer.asynthesize("14 pounds?", scored("one"))).response == Price(pounds=14)
    assert len(response.metadata["cachecraft"]["reports"]) == 1


def test_output_cls_streams_as_json(llm, scored):
    synthesizer = ChunkSynthesizer(llm, text_qa_template=TEMPLATE, output_cls=Price, streaming=True)
    text = "".join(synthesizer.synthesize("14 pounds?", scored("one")).response_gen)
    assert Price.model_validate_json(text) == Price(pounds=14)


async def test_a_structured_llm_keeps_its_chunks(llm, engine, scored):
    synthesizer = ChunkSynthesizer(llm.as_structured_llm(Price), text_qa_template=TEMPLATE)
    response = synthesizer.synthesize("14 pounds?", scored("one", "two"))
    assert response.response == Price(pounds=14)
    assert [chunk.text for chunk in engine.requests[-1].prompt.chunks] == ["one", "two"]
    assert (await synthesizer.asynthesize("14 pounds?", scored("one"))).response == Price(pounds=14)


async def test_any_other_llm_gets_plain_text(scored):
    synthesizer = ChunkSynthesizer(MockLLM(), text_qa_template=TEMPLATE)
    flat = "Read:\none\n\ntwo\n\nQ: why?"
    assert flat in str(synthesizer.synthesize("why?", scored("one", "two")))
    assert flat in str(await synthesizer.asynthesize("why?", scored("one", "two")))
    streaming = ChunkSynthesizer(MockLLM(), text_qa_template=TEMPLATE, streaming=True)
    assert flat in "".join(streaming.synthesize("why?", scored("one", "two")).response_gen)
    response = await streaming.asynthesize("why?", scored("one", "two"))
    assert flat in "".join([delta async for delta in response.response_gen])


def test_direct_calls_with_texts_alone(synthesizer, engine):
    assert synthesizer.get_response("why?", ["one", "two"]).endswith("Q: why?")
    assert [chunk.document_id for chunk in engine.requests[-1].prompt.chunks] == [None, None]


async def test_query_engine(engine, embedding):
    counter = TokenCountingHandler(tokenizer=lambda text: text.split())
    llm = Cachecraft(engine=engine)
    nodes = [TextNode(text=text) for text in ("red apples", "green apples", "blue skies")]
    index = VectorStoreIndex(nodes, embed_model=embedding, callback_manager=CallbackManager([counter]))
    synthesizer = get_chunk_synthesizer(llm)
    query_engine = index.as_query_engine(llm=llm, response_synthesizer=synthesizer, similarity_top_k=2)
    response = query_engine.query("apples?")
    assert {node.text for node in response.source_nodes} == {"red apples", "green apples"}
    assert len(engine.requests[-1].prompt.chunks) == 2
    usage = response.metadata["cachecraft"]["usages"][0]
    assert (counter.prompt_llm_token_count, counter.completion_llm_token_count) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert str(await query_engine.aquery("apples?")) == str(response)
    assert query_engine.get_prompts().keys() >= {"response_synthesizer:text_qa_template"}
