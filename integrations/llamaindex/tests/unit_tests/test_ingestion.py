"""Ids and prewarming in pipelines: stable, nothing lost, nothing done twice, nothing swallowed."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import subprocess
import sys
import uuid
from pathlib import Path

import llama_index.core.utils
import pytest
from llama_index.core import Document, SimpleDirectoryReader
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.schema import MetadataMode, NodeRelationship, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.llms.cachecraft import AssignChunkIds, Cachecraft, PrewarmChunks
from llama_index.vector_stores.qdrant import QdrantVectorStore
from qdrant_client import AsyncQdrantClient, QdrantClient

from cachecraft_rag import chunk_id
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.testing import FakeEngine

TEXT = " ".join(f"Sentence number {number} says something." for number in range(40))
INGEST = Path(__file__).with_name("ingest_folder.py")


@pytest.fixture
def splitter() -> SentenceSplitter:
    return SentenceSplitter(chunk_size=50, chunk_overlap=0)


@pytest.fixture
def offline_workers(monkeypatch):
    """Without it, a splitter that arrives in a worker process fetches its tokenizer from the network."""
    bundled = Path(llama_index.core.utils.__file__).parent / "_static" / "tiktoken_cache"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(bundled))


@pytest.fixture
def store() -> QdrantVectorStore:
    client = QdrantClient(":memory:")
    yield QdrantVectorStore("chunks", client=client, aclient=AsyncQdrantClient(":memory:"))
    client.close()


def chunk_ids(nodes) -> list[str]:
    return [node.metadata["chunk_id"] for node in nodes]


def test_ids_are_those_of_the_text_the_llm_sees(splitter):
    [document] = [Document(text=TEXT, metadata={"date": "today", "title": "T"})]
    nodes = AssignChunkIds()(splitter([document]))
    assert len(nodes) > 3
    for node in nodes:
        assert node.metadata["chunk_id"] == chunk_id(node.get_content(MetadataMode.LLM)) == chunk_id(node.text)
        assert "chunk_id" not in node.get_content(MetadataMode.EMBED)
        assert "date: today" in node.get_content(MetadataMode.EMBED)
        assert str(uuid.UUID(node.node_id)) == node.node_id


def test_metadata_that_changes_changes_no_id(splitter):
    def ids(date: str) -> list[tuple[str, str]]:
        document = Document(text=TEXT, id_="doc", metadata={"date": date}, excluded_llm_metadata_keys=[])
        # The splitter leaves less room for text where there is more metadata.
        return [(node.node_id, node.metadata["chunk_id"]) for node in AssignChunkIds()(splitter([document]))]

    assert ids("2026-01-01") == ids("2026-02-02")


def test_metadata_that_the_llm_shall_see_is_part_of_the_chunk():
    node = TextNode(text="one", metadata={"title": "T", "date": "D"}, excluded_llm_metadata_keys=["title"])
    [marked] = AssignChunkIds(llm_metadata_keys=["title"])([node])
    assert marked.get_content(MetadataMode.LLM) == "title: T\n\none"
    assert marked.metadata["chunk_id"] == chunk_id("title: T\n\none")


def test_it_is_pure_and_may_run_twice(splitter):
    nodes = splitter([Document(text=TEXT, id_="doc")])
    before = [node.to_dict() for node in nodes]
    once = AssignChunkIds()(nodes)
    assert [node.to_dict() for node in nodes] == before
    twice = AssignChunkIds()(once)
    assert [node.to_dict() for node in twice] == [node.to_dict() for node in once]


def test_relations_follow_the_new_ids(splitter):
    nodes = AssignChunkIds()(splitter([Document(text=TEXT, id_="doc")]))
    for earlier, later in itertools.pairwise(nodes):
        assert earlier.relationships[NodeRelationship.NEXT].node_id == later.node_id
        assert later.relationships[NodeRelationship.PREVIOUS].node_id == earlier.node_id
        assert earlier.ref_doc_id == "doc"


def test_lists_of_relations_follow_too():
    child = TextNode(text="child", id_="c")
    parent = TextNode(text="parent", id_="p", relationships={NodeRelationship.CHILD: [child.as_related_node_info()]})
    marked = AssignChunkIds()([parent, child])
    assert marked[0].relationships[NodeRelationship.CHILD][0].node_id == marked[1].node_id


def test_the_same_text_from_two_files_is_two_nodes_and_one_chunk():
    nodes = [TextNode(text="one", metadata={"file_path": path}) for path in ("a", "b")]
    first, second = AssignChunkIds()(nodes)
    assert first.node_id != second.node_id
    assert first.metadata["chunk_id"] == second.metadata["chunk_id"]


def test_pages_of_one_file_are_told_apart_also_when_one_is_read_alone(splitter):
    pages = [Document(text="Notice.", id_=f"file_part_{number}", metadata={"file_path": "file"}) for number in (0, 1)]
    both = [node.node_id for node in AssignChunkIds()(splitter(pages))]
    assert [node.node_id for page in pages for node in AssignChunkIds()(splitter([page]))] == both
    assert len(set(both)) == 2


@pytest.mark.parametrize("key", ["page_label", "page", "sheet_name"])
def test_pages_with_random_ids_are_told_apart_in_separate_calls(splitter, key):
    def read(number: int) -> str:
        page = Document(text="Notice.", id_=str(uuid.uuid4()), metadata={"file_path": "file", key: number})
        [node] = AssignChunkIds()(splitter([page]))
        return node.node_id

    assert read(0) != read(1)
    assert read(0) == read(0)


def test_a_text_that_one_document_repeats_keeps_both_nodes():
    first, second = AssignChunkIds()([TextNode(text="one"), TextNode(text="one")])
    assert first.node_id != second.node_id


def test_nodes_without_text_and_node_ids_that_are_wanted():
    empty, full = TextNode(text=" ", id_="e"), TextNode(text="one", id_="f")
    marked = AssignChunkIds(node_ids=False)([empty, full])
    assert [node.node_id for node in marked] == ["e", "f"]
    assert "chunk_id" not in marked[0].metadata
    assert AssignChunkIds()([empty])[0].node_id == "e"


def test_three_processes_touched_files_and_another_directory(tmp_path):
    folder = tmp_path / "docs"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.md").write_text(TEXT)
    (folder / "sub" / "b.md").write_text(TEXT[:300])
    engine, found = FakeEngine(), []
    for run, (seed, cwd, name) in enumerate(
        [("1", tmp_path, "docs"), ("2", folder, "."), ("3", Path("/"), str(folder))]
    ):
        os.utime(folder / "a.md", (1e9 + 1e6 * run, 1e9 + 1e6 * run))
        output = subprocess.run(
            [sys.executable, INGEST, name],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=cwd,
            capture_output=True,
            text=True,
            check=True,
        )
        nodes = [TextNode.from_dict(node) for node in json.loads(output.stdout.splitlines()[-1])]
        found.append([(node.node_id, node.metadata["chunk_id"]) for node in nodes])
        prewarm = PrewarmChunks(Cachecraft(engine=engine))
        prewarm(nodes)
        assert len(prewarm.report.stored) == (len(found[0]) if run == 0 else 0)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 2
    assert len({node.metadata["last_modified_date"] for node in nodes}) == 2


def pipeline_of(*transformations, **options) -> IngestionPipeline:
    return IngestionPipeline(transformations=list(transformations), **options)


def test_reading_a_folder_again_replaces_its_points(tmp_path, splitter, embedding, store):
    (tmp_path / "a.md").write_text(TEXT)
    for _ in range(3):
        documents = SimpleDirectoryReader(tmp_path).load_data()  # with a random document id each time
        nodes = pipeline_of(splitter, AssignChunkIds(), embedding, vector_store=store).run(documents=documents)
        assert store.client.count("chunks").count == len(nodes) > 3


def test_upserts_keep_all_chunks_of_each_document(splitter, embedding, store, llm, engine):
    pipeline = pipeline_of(
        splitter,
        AssignChunkIds(),
        embedding,
        PrewarmChunks(llm),
        vector_store=store,
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS,
    )

    def stored(document: str) -> list[str]:
        points, _ = store.client.scroll("chunks", limit=1000)
        return sorted(point.payload["chunk_id"] for point in points if point.payload["doc_id"] == document)

    repeated = "The same sentence again and again, as often as it takes to fill some chunks. " * 20
    texts = {"a": TEXT, "b": TEXT + " One more sentence.", "c": repeated}
    for _ in range(2):
        pipeline.run(documents=[Document(text=text, id_=name) for name, text in texts.items()])
        for name, text in texts.items():
            expected = sorted(chunk_ids(AssignChunkIds()(splitter([Document(text=text, id_=name)]))))
            assert stored(name) == expected
            assert len(expected) > 3
    kept = stored("b")
    pipeline.run(documents=[Document(text="Short now.", id_="a"), Document(text=texts["b"], id_="b")])
    assert stored("a") == [chunk_id("Short now.")]
    assert stored("b") == kept
    assert sorted(engine.prewarmed) == sorted(
        {*kept, *stored("a"), *stored("c"), *chunk_ids(AssignChunkIds()(splitter([Document(text=TEXT)])))}
    )


def test_a_pipelines_cache_does_not_swallow_a_prewarm(tmp_path, splitter):
    documents = [Document(text=TEXT, id_="doc")]
    engines = [FakeEngine(), FakeEngine()]
    pipeline = pipeline_of(splitter, AssignChunkIds(), PrewarmChunks(Cachecraft(engine=engines[0])))
    first = pipeline.run(documents=documents)
    assert len(engines[0].prewarmed) == len(first) > 3
    pipeline.persist(tmp_path)
    again = pipeline_of(splitter, AssignChunkIds(), PrewarmChunks(Cachecraft(engine=engines[1])))
    again.load(tmp_path)
    assert chunk_ids(again.run(documents=documents)) == chunk_ids(first)
    assert engines[1].prewarmed == engines[0].prewarmed
    engines[1].delete(everything=True)
    again.run(documents=documents)
    assert engines[1].prewarmed == engines[0].prewarmed * 2


def test_prewarming_behind_the_pipeline_leaves_its_cache_alone(splitter, llm, engine):
    pipeline = pipeline_of(splitter, AssignChunkIds())
    sizes = []
    for run in range(3):
        nodes = pipeline.run(documents=[Document(text=TEXT, id_="doc")])
        PrewarmChunks(llm)(nodes)
        assert engine.prewarmed == chunk_ids(nodes) * (run + 1)
        engine.delete(everything=True)
        sizes.append(len(pipeline.cache.cache.get_all(collection=pipeline.cache.collection)))
    assert sizes == [2, 2, 2]


def test_the_cache_serves_the_ids(splitter, monkeypatch):
    pipeline = pipeline_of(splitter, AssignChunkIds())
    documents = [Document(text=TEXT, id_="doc")]
    first = pipeline.run(documents=documents)
    monkeypatch.setattr(AssignChunkIds, "__call__", lambda *_: pytest.fail("called again"))
    assert chunk_ids(pipeline.run(documents=documents)) == chunk_ids(first)


async def test_async_pipelines(splitter, llm, engine):
    prewarm = PrewarmChunks(llm)
    nodes = await pipeline_of(splitter, AssignChunkIds(), prewarm).arun(documents=[Document(text=TEXT, id_="doc")])
    assert list(prewarm.report.stored) == chunk_ids(nodes)
    assert engine.delete(document_id="doc") == chunk_ids(nodes)


def test_both_are_picklable(llm):
    assign = AssignChunkIds(llm_metadata_keys=["title"], node_ids=False)
    assert pickle.loads(pickle.dumps(assign)) == assign
    copy = pickle.loads(pickle.dumps(PrewarmChunks(llm)))
    with pytest.raises(InvalidInput, match=r"the engine stayed behind.*num_workers=None"):
        copy([TextNode(text="one")])


def test_worker_processes_assign_ids(splitter, offline_workers):
    documents = [Document(text=f"{name} {TEXT}", id_=name) for name in ("a", "b")]
    alone = pipeline_of(splitter, AssignChunkIds()).run(documents=documents)
    shared = pipeline_of(splitter, AssignChunkIds()).run(documents=documents, num_workers=2)
    assert [(node.node_id, node.metadata) for node in shared] == [(node.node_id, node.metadata) for node in alone]


def test_worker_processes_refuse_to_prewarm(splitter, llm, engine, offline_workers):
    pipeline = pipeline_of(splitter, PrewarmChunks(llm))
    with pytest.raises(InvalidInput, match="the engine stayed behind"):
        pipeline.run(documents=[Document(text=TEXT, id_=name) for name in ("a", "b")], num_workers=2)
    assert not engine.prewarmed


def test_prewarming_is_idempotent_and_says_what_it_did(llm, engine, caplog):
    prewarm = PrewarmChunks(llm)
    nodes = [TextNode(text="one"), TextNode(text="two"), TextNode(text="one"), TextNode(text=" ")]
    assert prewarm.report is None
    assert prewarm(nodes) is nodes
    assert prewarm.report.stored == (chunk_id("one"), chunk_id("two"))
    prewarm(nodes)
    assert prewarm.report.stored == ()
    assert prewarm.report.present == (chunk_id("one"), chunk_id("two"))
    prewarm([TextNode(text=" ")])
    assert prewarm.report.stored == prewarm.report.present == ()
    assert not caplog.records


def test_refused_chunks_are_logged(caplog):
    prewarm = PrewarmChunks(Cachecraft(engine=FakeEngine(min_chunk_tokens=3)))
    prewarm([TextNode(text="one"), TextNode(text="one two three")])
    assert list(prewarm.report.refused) == [chunk_id("one")]
    assert f"chunk {chunk_id('one')} was not prewarmed: its 1 tokens" in caplog.text


def test_namespaces_are_kept(engine):
    PrewarmChunks(Cachecraft(engine=engine, namespace="me"))([TextNode(text="one")])
    assert engine.delete(everything=True) == []
    assert engine.delete(everything=True, namespace="me") == [chunk_id("one")]
