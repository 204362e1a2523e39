"""Old chains that put their documents into one string."""

from __future__ import annotations

import pytest
from langchain_cachecraft import ChatCachecraft, ChunkRetriever, prewarm
from langchain_cachecraft.documents import chunk_of
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

from cachecraft_rag.recover import RecentByNamespace
from cachecraft_rag.testing import FakeEngine

PROMPT = ChatPromptTemplate.from_template("Read:\n{context}\n\nQuestion: {input}")


@pytest.mark.parametrize("recover", [True, False])
async def test_a_stuff_chain(engine: FakeEngine, documents: list[Document], recover: bool) -> None:
    llm = ChatCachecraft(engine=engine, recover_chunks=recover)
    prewarm(documents, llm, progress=False)
    retriever = ChunkRetriever(retriever=RunnableLambda(lambda query: documents), llm=llm)
    chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, PROMPT))
    results = [chain.invoke({"input": "Who?"}), await chain.ainvoke({"input": "Who?"})]
    assert [len(result["context"]) for result in results] == [3, 3]
    for request in engine.requests:
        assert [chunk.text for chunk in request.prompt.chunks] == (
            [document.page_content for document in documents] if recover else []
        )
        assert [chunk.document_id for chunk in request.prompt.chunks] == (
            ["bees", "harbour", "ferry"] if recover else []
        )


def test_the_report_says_recovered(engine: FakeEngine, documents: list[Document]) -> None:
    llm = ChatCachecraft(engine=engine, recover_chunks=True)
    prewarm(documents, llm, progress=False)
    llm.remember([*documents, Document(" ")])
    flat = "\n\n".join(document.page_content for document in documents)
    report = llm.invoke(f"{flat}\n\nWho?").response_metadata["cachecraft"]
    assert [(chunk["outcome"], chunk["recovered"]) for chunk in report["chunks"]] == [("HIT", True)] * 3
    assert "recovered" in report["chunks"][0]["reason"]
    assert engine.requests[-1].prompt.text == f"{flat}\n\nWho?"


def test_chunks_are_remembered_for_all_copies(engine: FakeEngine, documents: list[Document]) -> None:
    llm = ChatCachecraft(engine=engine, recover_chunks=True)
    copy = llm.model_copy(update={"max_tokens": 5})
    llm.remember(documents)
    copy.invoke(f"{documents[0].page_content}\n\nWho?")
    assert len(engine.requests[-1].prompt.chunks) == 1


def test_nothing_is_found_in_another_namespace(engine: FakeEngine, documents: list[Document]) -> None:
    mine = ChatCachecraft(engine=engine, namespace="mine", recover_chunks=True)
    others = mine.model_copy(update={"namespace": "others"})
    ChunkRetriever(retriever=RunnableLambda(lambda query: documents[:1]), llm=mine).invoke("Who?")
    mine.remember(documents[1:])
    flat = "".join(f"{document.page_content}\n\n" for document in documents)
    found = []
    for llm in (mine, others, mine.bind(namespace="others"), others.bind(namespace="mine"), mine.bind(namespace=None)):
        llm.invoke(flat)
        found.append(len(engine.requests[-1].prompt.chunks))
    assert found == [3, 0, 0, 3, 0]
    assert others.get_num_tokens_from_messages([HumanMessage(flat)]) > 0


def test_namespaces_used_long_ago_are_forgotten(documents: list[Document]) -> None:
    recent = RecentByNamespace(capacity=2)
    for name in ("a", "b"):
        recent.of(name).remember([chunk_of(documents[0])])
    recent.of("a")
    recent.of("c")
    assert [len(recent.of(name)) for name in ("a", "b")] == [1, 0]
