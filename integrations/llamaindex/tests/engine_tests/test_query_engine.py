"""Query and chat engines, and ingestion, over Qdrant and a real model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.callbacks import CallbackManager, TokenCountingHandler
from llama_index.core.chat_engine import ContextChatEngine
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.llms.cachecraft import (
    AssignChunkIds,
    Cachecraft,
    ChunkIdPostprocessor,
    PrewarmChunks,
    adelete_ref_doc,
    delete_ref_doc,
    get_chunk_synthesizer,
)
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llamaindex_setup import MiniLM
from pydantic import BaseModel
from qdrant_client import AsyncQdrantClient, QdrantClient

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.errors import InvalidInput

INGEST = Path(__file__).parents[1] / "unit_tests" / "ingest_folder.py"


class Permuted(BaseRetriever):
    """What another retriever finds, in another order each time."""

    def __init__(self, retriever: BaseRetriever) -> None:
        self.retriever = retriever
        self.turn = 0
        super().__init__()

    def _retrieve(self, query_bundle):
        return self._turned(self.retriever.retrieve(query_bundle))

    async def _aretrieve(self, query_bundle):
        return self._turned(await self.retriever.aretrieve(query_bundle))

    def _turned(self, nodes):
        self.turn += 1
        return nodes[self.turn % len(nodes) :] + nodes[: self.turn % len(nodes)]


@pytest.fixture(scope="session")
def embedding() -> MiniLM:
    return MiniLM()


@pytest.fixture
async def store():
    client, aclient = QdrantClient(":memory:"), AsyncQdrantClient(":memory:")
    yield QdrantVectorStore("chunks", client=client, aclient=aclient)
    client.close()
    await aclient.close()


@pytest.fixture
async def index(store, embedding, nodes) -> VectorStoreIndex:
    """Six nodes, in the synchronous and the asynchronous Qdrant."""
    found = AssignChunkIds()(nodes(6))
    storage = StorageContext.from_defaults(vector_store=store)
    index = VectorStoreIndex(found, storage_context=storage, embed_model=embedding)
    for node in found:
        node.embedding = embedding.get_text_embedding(node.text)
    await store.async_add(found)
    return index


def reports(response):
    return response.metadata["cachecraft"]["reports"]


async def test_the_same_question_over_permuted_nodes(llm, index, all_blocks_are_free):
    counter = TokenCountingHandler(tokenizer=lambda text: text.split())
    retriever = Permuted(index.as_retriever(similarity_top_k=4))
    llm.callback_manager = CallbackManager([counter])
    query_engine = RetrieverQueryEngine.from_args(retriever, llm=llm, response_synthesizer=get_chunk_synthesizer(llm))
    first = query_engine.query("Who keeps bees?")
    assert reports(first)[0].misses == 4
    orders, usages = set(), list(first.metadata["cachecraft"]["usages"])
    for asynchronous in (False, True, False):
        response = (
            await query_engine.aquery("Who keeps bees?") if asynchronous else query_engine.query("Who keeps bees?")
        )
        [report] = reports(response)
        assert (report.hits, report.misses, report.refused) == (4, 0, 0)
        assert report.computed_tokens < report.prompt_tokens / 2
        assert [chunk.chunk_id for chunk in report.chunks] == [
            node.metadata["chunk_id"] for node in response.source_nodes
        ]
        assert [chunk.document_id for chunk in report.chunks] == [
            node.node.ref_doc_id for node in response.source_nodes
        ]
        assert all(node.score is not None for node in response.source_nodes)
        assert str(response)
        orders.add(tuple(chunk.chunk_id for chunk in report.chunks))
        usages += response.metadata["cachecraft"]["usages"]
    assert len(orders) == 3
    assert counter.prompt_llm_token_count == sum(usage["prompt_tokens"] for usage in usages)
    assert counter.completion_llm_token_count == sum(usage["completion_tokens"] for usage in usages)


async def test_as_query_engine_streams(llm, index, all_blocks_are_free):
    def engine_with(**options):
        return index.as_query_engine(
            llm=llm, response_synthesizer=get_chunk_synthesizer(llm, **options), similarity_top_k=3
        )

    query = engine_with()
    query.query("Who keeps bees?")
    whole = query.query("Who keeps bees?")
    stream = engine_with(streaming=True).query("Who keeps bees?")
    deltas = list(stream.response_gen)
    assert len(deltas) >= 4
    assert "".join(deltas) == str(whole)
    assert reports(stream)[0].hits == 3
    assert len(stream.source_nodes) == 3
    response = await engine_with(streaming=True).aquery("Who keeps bees?")
    assert "".join([delta async for delta in response.async_response_gen()]) == str(whole)
    assert reports(response)[0].hits == 3
    abandoned = engine_with(streaming=True).query("Who keeps bees?").response_gen
    next(abandoned)
    abandoned.close()
    response = await engine_with(streaming=True).aquery("Who keeps bees?")
    await anext(response.response_gen)
    await response.response_gen.aclose()


def test_exact_answers_are_those_of_plain_vllm(engine, nodes):
    exact = Cachecraft(engine=engine, recompute_ratio=1.0, max_tokens=10)
    plain = Cachecraft(engine=engine, additional_kwargs={"reuse": False, "fresh": True}, max_tokens=10)
    found = [NodeWithScore(node=node) for node in nodes(3)]
    get_chunk_synthesizer(exact).synthesize("Who keeps bees?", found)
    assert str(get_chunk_synthesizer(exact).synthesize("Who keeps bees?", found[::-1])) == str(
        get_chunk_synthesizer(plain).synthesize("Who keeps bees?", found[::-1])
    )


class Answer(BaseModel):
    name: str


def test_output_cls(engine, nodes):
    llm = Cachecraft(engine=engine, max_tokens=60)
    response = get_chunk_synthesizer(llm, output_cls=Answer).synthesize(
        "Who?", [NodeWithScore(node=n) for n in nodes(2)]
    )
    assert isinstance(response.response, Answer)
    assert [chunk.tokens > 50 for chunk in reports(response)[0].chunks] == [True, True]


def test_a_full_context(engine, llm, nodes, caplog):
    found = [NodeWithScore(node=node) for node in nodes(30)]
    room = llm.metadata.context_window - llm.max_tokens
    response = get_chunk_synthesizer(llm).synthesize("Who?", found)
    dropped = response.metadata["cachecraft"]["dropped"]
    [report] = reports(response)
    assert len(report.chunks) + len(dropped) == 30
    assert 0 < len(dropped) < 20
    assert room - 200 < report.prompt_tokens <= room
    assert f"{len(dropped)} chunks were left out" in report.warnings[-1]
    with pytest.raises(InvalidInput, match=f"room for {room}"):
        get_chunk_synthesizer(llm, overflow="raise").synthesize("Who?", found)
    refined = get_chunk_synthesizer(llm, overflow="refine").synthesize("Who?", found)
    assert sum(len(report.chunks) for report in reports(refined)) == 30
    assert len(reports(refined)) == 2


def test_a_chat_engine_that_flattens_its_nodes(engine, index):
    llm = Cachecraft(engine=engine, max_tokens=8, recover_chunks=True)
    seen = TokenCountingHandler(tokenizer=lambda text: text.split())
    chat = ContextChatEngine.from_defaults(
        index.as_retriever(similarity_top_k=3),
        llm=llm,
        context_template="Context:\n\n{context_str}\n\nAnswer briefly.",
        node_postprocessors=[ChunkIdPostprocessor(llm=llm)],
    )
    chat.callback_manager = CallbackManager([seen])
    for question, outcomes in (("Who keeps bees?", "MISS"), ("Who keeps bees?", "HIT")):
        chat.reset()
        assert str(chat.chat(question))
        report = engine.report
        assert [(chunk.outcome.value, chunk.recovered) for chunk in report.chunks] == [(outcomes, True)] * 3
        assert "recovered from flat text" in report.chunks[0].reason


def test_the_same_folder_in_three_processes(llm, engine, nodes, tmp_path):
    folder = tmp_path / "docs"
    folder.mkdir()
    for number, node in enumerate(nodes(3)):
        (folder / f"{number}.md").write_text(node.text)
    prewarm, ids = PrewarmChunks(llm), []
    for run, (seed, cwd, name) in enumerate(
        [("1", tmp_path, "docs"), ("2", folder, "."), ("3", Path("/"), str(folder))]
    ):
        os.utime(folder / "1.md", (1e9 + 1e6 * run, 1e9 + 1e6 * run))
        output = subprocess.run(
            [sys.executable, INGEST, name],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=True,
        )
        read = [TextNode.from_dict(node) for node in json.loads(output.stdout.splitlines()[-1])]
        ids.append([(node.node_id, node.metadata["chunk_id"]) for node in read])
        prewarm(read)
        assert (len(prewarm.report.stored), len(prewarm.report.present)) == ((3, 0) if run == 0 else (0, 3))
    assert ids[0] == ids[1] == ids[2]
    assert engine.check() == []


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_a_pipelines_chunks_come_and_go(llm, engine, nodes, store, embedding, asynchronous):
    one, two, shared = (node.text for node in nodes(3))
    prewarm = PrewarmChunks(llm)
    pipeline = IngestionPipeline(
        # Each passage of about 90 tokens becomes a node of its own.
        transformations=[
            SentenceSplitter(chunk_size=10_000, paragraph_separator="\n\n"),
            AssignChunkIds(),
            embedding,
            prewarm,
        ],
        vector_store=store,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS,
    )
    documents = [
        Document(text=text, id_=f"{name}-{asynchronous}-{number}")
        for name, texts in (("a", [one, shared]), ("b", [two, shared]))
        for number, text in enumerate(texts)
    ]

    async def run():
        return await pipeline.arun(documents=documents) if asynchronous else pipeline.run(documents=documents)

    before = engine.stats()["chunks"]
    assert len(await run()) == 4
    assert len(prewarm.report.stored) == 3
    assert engine.stats()["chunks"] == before + 3
    assert await run() == []

    async def delete(name):
        if asynchronous:
            return await adelete_ref_doc(name, llm, pipeline=pipeline)
        return delete_ref_doc(name, llm, pipeline=pipeline)

    assert await delete(documents[1].id_) == []  # the other document has it too
    assert len(await delete(documents[0].id_)) == 1
    assert engine.stats()["chunks"] == before + 2
    [report] = reports(
        get_chunk_synthesizer(llm).synthesize(
            "Who?", [NodeWithScore(node=TextNode(text=t)) for t in (one, two, shared)]
        )
    )
    assert [chunk.outcome.value for chunk in report.chunks] == ["MISS", "HIT", "HIT"]
    assert len(await run()) == 2
    assert engine.check() == []


def test_plain_requests_never_see_repaired_kv(llm, engine, nodes):
    found = [NodeWithScore(node=node) for node in nodes(2)]
    prompt = ChunkPrompt.from_messages([{"role": "user", "content": f"{found[0].text}\n\n{found[1].text}\n\nWho?"}])
    before = engine.generate(prompt, max_tokens=8).token_ids
    for order in (found, found[::-1]):
        get_chunk_synthesizer(llm).synthesize("Who?", order)
    assert engine.generate(prompt, max_tokens=8).token_ids == before
