"""Old chains that put their documents into one string."""

from __future__ import annotations

import pytest
from langchain_cachecraft import ChatCachecraft, ChunkRetriever, prewarm
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda

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
