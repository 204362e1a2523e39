"""What retrievers find, with ids, whatever they lose on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_cachecraft import ChatCachecraft, ChunkPromptTemplate, ChunkRetriever, assign_chunk_ids, prewarm
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever, ParentDocumentRetriever
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline
from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import ConfigurableField, RunnableConfig, RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_qdrant import QdrantVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from qdrant_client import QdrantClient, models

from cachecraft_rag import chunk_id
from cachecraft_rag.testing import FakeEngine

EMBEDDING = DeterministicFakeEmbedding(size=16)


class Bare(BaseRetriever):
    """Returns what it has, ids and metadata lost, as BM25 and others do."""

    documents: list[Document]

    def _get_relevant_documents(self, query: str, **_: Any) -> list[Document]:
        return [Document(document.page_content) for document in self.documents]


class Shorten(BaseDocumentTransformer):
    def transform_documents(self, documents: Any, **_: Any) -> list[Document]:
        return [Document(document.page_content[:20], metadata=document.metadata) for document in documents]


def in_memory(documents: list[Document]) -> BaseRetriever:
    store = InMemoryVectorStore(EMBEDDING)
    store.add_documents(documents)
    return store.as_retriever()


def qdrant(documents: list[Document]) -> BaseRetriever:
    client = QdrantClient(":memory:")
    client.create_collection("c", vectors_config=models.VectorParams(size=16, distance=models.Distance.COSINE))
    store = QdrantVectorStore(client, "c", EMBEDDING)
    store.add_documents(documents, ids=[document.id for document in documents])
    return store.as_retriever()


def ensemble(documents: list[Document]) -> BaseRetriever:
    return EnsembleRetriever(retrievers=[Bare(documents=documents), in_memory(documents)], id_key=None)


def compressed(documents: list[Document]) -> BaseRetriever:
    pipeline = DocumentCompressorPipeline(transformers=[Shorten()])
    return ContextualCompressionRetriever(base_compressor=pipeline, base_retriever=in_memory(documents))


def parents(documents: list[Document]) -> BaseRetriever:
    splitter = RecursiveCharacterTextSplitter(chunk_size=12, chunk_overlap=0)
    retriever = ParentDocumentRetriever(
        vectorstore=InMemoryVectorStore(EMBEDDING), docstore=InMemoryStore(), child_splitter=splitter
    )
    retriever.add_documents(documents)
    return retriever


@pytest.mark.parametrize("make", [in_memory, qdrant, lambda d: Bare(documents=d), ensemble, parents])
async def test_chunks_of_any_retriever_are_hits(
    make: Callable[[list[Document]], BaseRetriever], llm: ChatCachecraft, documents: list[Document]
) -> None:
    documents = assign_chunk_ids(documents)
    prewarm(documents, llm, progress=False)
    retriever = ChunkRetriever(retriever=make(documents), llm=llm)
    prompt = ChunkPromptTemplate.from_template("{context}\n\nWho?")
    for found in (retriever.invoke("bees"), await retriever.ainvoke("bees")):
        assert found
        for document in found:
            assert document.metadata["chunk_id"] == chunk_id(document.page_content)
            assert document.id
            assert not {"_id", "_collection_name"} & set(document.metadata)
        report = llm.invoke(prompt.invoke({"context": found})).response_metadata["cachecraft"]
        assert [chunk["outcome"] for chunk in report["chunks"]] == ["HIT"] * len(found)


def test_the_stores_own_id_is_kept(documents: list[Document]) -> None:
    documents = assign_chunk_ids(documents)
    found = ChunkRetriever(retriever=qdrant(documents)).invoke("bees")
    assert {document.id for document in found} == {document.id for document in documents}
    assert {document.metadata["document_id"] for document in found} == {"bees", "harbour", "ferry"}


def test_a_text_that_was_changed_is_a_reported_miss(llm: ChatCachecraft, documents: list[Document]) -> None:
    documents = assign_chunk_ids(documents)
    prewarm(documents, llm, progress=False)
    found = ChunkRetriever(retriever=compressed(documents)).invoke("bees")
    prompt = ChunkPromptTemplate.from_template("{context}\n\nWho?").invoke({"context": found})
    report = llm.invoke(prompt).response_metadata["cachecraft"]
    assert report["totals"]["misses"] == len(found) == 3
    assert report["warnings"] == []
    assert all(chunk["reason"] for chunk in report["chunks"])


def test_empty_texts_pass_through() -> None:
    found = ChunkRetriever(retriever=Bare(documents=[Document(" "), Document("text")])).invoke("q")
    assert found[0] == Document(" ")
    assert found[1].metadata == {"chunk_id": chunk_id("text")}


def test_any_runnable_is_a_retriever(documents: list[Document]) -> None:
    retriever = ChunkRetriever(retriever=RunnableLambda(lambda query: documents), k=2)
    assert [document.page_content for document in retriever.invoke("q")] == [d.page_content for d in documents[:2]]


async def test_the_callers_config_reaches_the_wrapped_retriever(documents: list[Document]) -> None:
    field = ConfigurableField(id="search")
    base = in_memory(documents).configurable_fields(search_kwargs=field)
    retriever = ChunkRetriever(retriever=base)
    mine = {"filter": lambda document: document.metadata["source"] == "bees"}
    config: RunnableConfig = {"configurable": {"search": mine}, "run_name": "outer", "tags": ["mine"]}
    found = [retriever.invoke("q", config), await retriever.ainvoke("q", config), *retriever.batch(["q"], config)]
    found += await retriever.abatch(["q"], config)
    assert [[document.metadata["source"] for document in one] for one in found] == [["bees"]] * 4
    assert len(retriever.invoke("q")) == 3


async def test_the_wrapped_retriever_is_a_run_inside_this_one(documents: list[Document]) -> None:
    retriever = ChunkRetriever(retriever=Bare(documents=documents))
    config: RunnableConfig = {"run_name": "outer", "tags": ["mine"], "metadata": {"user": 1}}
    events = [event async for event in retriever.astream_events("q", config, version="v2")]
    inner, outer = (
        next(event for event in events if event["name"] == name and event["event"] == "on_retriever_start")
        for name in ("Bare", "outer")
    )
    assert inner["parent_ids"] == [outer["run_id"]]
    assert (inner["tags"], inner["metadata"]["user"]) == (["mine"], 1)


def test_found_chunks_are_remembered(llm: ChatCachecraft, documents: list[Document]) -> None:
    ChunkRetriever(retriever=Bare(documents=documents), llm=llm).invoke("q")
    assert len(llm.recent_chunks) == 3


class Prefetching(FakeEngine):
    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.fetched: list[Any] = []
        self.error = error

    def prefetch(self, chunks: Any, *, namespace: str | None = None) -> None:
        if self.error is not None:
            raise self.error
        self.fetched.append(([chunk.text for chunk in chunks], namespace))


def test_an_engine_that_can_fetches_ahead(documents: list[Document]) -> None:
    engine = Prefetching()
    llm = ChatCachecraft(engine=engine, namespace="tenant")
    ChunkRetriever(retriever=Bare(documents=documents), llm=llm).invoke("q")
    assert engine.fetched == [([document.page_content for document in documents], "tenant")]


def test_fetching_ahead_does_no_harm(documents: list[Document], caplog: pytest.LogCaptureFixture) -> None:
    llm = ChatCachecraft(engine=Prefetching(RuntimeError("disk full")))
    assert len(ChunkRetriever(retriever=Bare(documents=documents), llm=llm).invoke("q")) == 3
    assert "fetched ahead" in caplog.text


def test_a_retriever_starts_no_engine(documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachecraft_rag.engine.ChunkEngine", lambda config: pytest.fail("started"))
    llm = ChatCachecraft(model="m")
    assert len(ChunkRetriever(retriever=Bare(documents=documents), llm=llm).invoke("q")) == 3
    assert llm.started_engine is None
