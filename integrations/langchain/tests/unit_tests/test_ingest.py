"""Ingestion: again and again, in any process, and what goes with a document that goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_cachecraft import (
    ChatCachecraft,
    ChunkIngestor,
    ChunkPromptTemplate,
    IngestReport,
    aprewarm,
    assign_chunk_ids,
    chunk_key,
    prewarm,
)
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.indexing import InMemoryRecordManager, index
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_qdrant import QdrantVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from qdrant_client import QdrantClient, models

from cachecraft_rag import chunk_id
from cachecraft_rag.errors import CachecraftError, InvalidInput
from cachecraft_rag.testing import FakeEngine

SCRIPT = Path(__file__).with_name("ingest_once.py")
EMBEDDING = DeterministicFakeEmbedding(size=8)
SPLITTER = RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0)
ANNEX = "The annex is shared by two manuals."


def doc(name: str, *paragraphs: str) -> Document:
    return Document("\n\n".join(paragraphs), metadata={"source": name})


def texts(store: InMemoryVectorStore) -> list[str]:
    return sorted(entry["text"] for entry in store.store.values())


def ingestor(
    engine: Any = None, state: Path | None = None, store: VectorStore | None = None
) -> tuple[ChunkIngestor, InMemoryVectorStore]:
    made = store or InMemoryVectorStore(EMBEDDING)
    return ChunkIngestor(made, engine, splitter=SPLITTER, state=state), made  # type: ignore[return-value]


def stored(engine: FakeEngine) -> set[str]:
    return set(engine.stored())


def run_once(folder: str, work: Path, cwd: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, work, *arguments], cwd=cwd, capture_output=True, text=True, check=True
    )
    made: dict[str, Any] = json.loads(done.stdout)
    return made


def test_the_same_folder_three_times_in_new_processes(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text(f"Bees live in the tower.\n\n{ANNEX}")
    (folder / "b.md").write_text(f"The ferry leaves at nine.\n\n{ANNEX}")
    first = run_once("docs", tmp_path, tmp_path)
    assert (first["added"], first["skipped"], len(first["points"])) == (4, 0, 4)
    assert (len(first["stored"]), len(set(first["chunks"]))) == (3, 3)
    assert (first["stored_again"], first["added_again"]) == ([], [])
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    second = run_once("../docs", tmp_path, folder)
    third = run_once(str(folder), tmp_path, Path("/"))
    for later in (second, third):
        assert later["points"] == first["points"]
        assert later["chunks"] == first["chunks"]
        assert later["stored"] == first["stored"], "each process has an engine of its own"
        assert (later["stored_again"], later["added_again"], later["removed"]) == ([], [], 0)
    assert (third["added"], third["skipped"]) == (0, 4)
    (folder / "b.md").unlink()
    last = run_once("docs", tmp_path, tmp_path, "full")
    assert (last["removed"], len(last["points"]), len(last["stored"])) == (2, 2, 2)


def test_a_document_that_shrinks_loses_points_and_caches(engine: FakeEngine) -> None:
    ingest, store = ingestor(engine)
    ingest.ingest([doc("a", "Bees live in the tower.", ANNEX, "Honey is sold on Mondays."), doc("b", ANNEX)])
    report = ingest.ingest([doc("a", "Bees live in the tower.")])
    assert texts(store) == ["Bees live in the tower.", ANNEX]
    assert report.dropped == (chunk_id("Honey is sold on Mondays."),)
    assert len(report.removed) == 2
    assert stored(engine) == {chunk_id("Bees live in the tower."), chunk_id(ANNEX)}
    assert (len(report.added), report.skipped) == (0, 1)


def test_a_document_that_is_gone(engine: FakeEngine) -> None:
    ingest, store = ingestor(engine)
    documents = [doc("a", "Bees live in the tower.", ANNEX), doc("b", "The ferry leaves at nine.", ANNEX)]
    ingest.ingest(documents)
    assert ingest.ingest(documents[:1]).removed == ()
    report = ingest.ingest(documents[:1], cleanup="full")
    assert report.dropped == (chunk_id("The ferry leaves at nine."),)
    assert texts(store) == sorted(["Bees live in the tower.", ANNEX])
    assert stored(engine) == {chunk_id("Bees live in the tower."), chunk_id(ANNEX)}
    ingest.ingest([], cleanup="full")
    assert texts(store) == []
    assert stored(engine) == set()


async def test_a_document_that_is_renamed_keeps_its_caches(engine: FakeEngine) -> None:
    ingest, store = ingestor(engine)
    ingest.ingest([doc("old", "Bees live in the tower.", ANNEX)])
    report = ingest.ingest([doc("new", "Bees live in the tower.")], cleanup="full")
    again = await ingest.aingest([doc("newer", "Bees live in the tower.")], cleanup="full")
    assert [one.dropped for one in (report, again)] == [(chunk_id(ANNEX),), ()]
    for one in (report, again):
        assert one.prewarm is not None
        assert (one.prewarm.stored, one.prewarm.present) == ((), (chunk_id("Bees live in the tower."),))
    assert texts(store) == ["Bees live in the tower."]
    assert ingest.ingest([], cleanup="full").dropped == (chunk_id("Bees live in the tower."),)


def test_caches_stored_while_answering_go_too(engine: FakeEngine) -> None:
    ingest, _ = ingestor(engine)
    ingest.ingest([doc("a", "Bees live in the tower.")])
    engine.delete(everything=True)
    prompt = ChunkPromptTemplate.from_template("{context}\n\nWho?")
    ChatCachecraft(engine=engine).invoke(prompt.invoke({"context": [Document("Bees live in the tower.")]}))
    assert stored(engine) == {chunk_id("Bees live in the tower.")}
    assert ingest.ingest([], cleanup="full").dropped == (chunk_id("Bees live in the tower."),)
    assert stored(engine) == set()


def test_an_empty_document_is_one_that_shrank(engine: FakeEngine) -> None:
    ingest, store = ingestor(engine)
    ingest.ingest([doc("a", "Bees live in the tower.")])
    assert len(ingest.ingest([doc("a", "")]).removed) == 1
    assert texts(store) == []
    assert stored(engine) == set()


def test_only_metadata_changes(engine: FakeEngine) -> None:
    ingest, store = ingestor(engine)
    first = ingest.ingest([Document("Bees live here.", metadata={"source": "a", "date": 1})])
    second = ingest.ingest([Document("Bees live here.", metadata={"source": "a", "date": 2})])
    assert first.added == second.added
    assert second.prewarm is not None
    assert second.prewarm.stored == ()
    assert [entry["metadata"]["date"] for entry in store.store.values()] == [2]


def test_a_vector_store_that_was_emptied_is_filled_again(tmp_path: Path, engine: FakeEngine) -> None:
    documents = [doc("a", "Bees live in the tower.")]
    ingestor(engine, tmp_path / "state.json")[0].ingest(documents)
    ingest, store = ingestor(engine, tmp_path / "state.json")
    assert len(ingest.ingest(documents).added) == 1
    assert texts(store) == ["Bees live in the tower."]


class Forgetful(InMemoryVectorStore):
    """A store that cannot be asked for ids."""

    def get_by_ids(self, ids: Any, /) -> Any:
        raise NotImplementedError

    async def aget_by_ids(self, ids: Any, /) -> Any:
        raise NotImplementedError


async def test_a_vector_store_that_cannot_be_asked_is_believed(engine: FakeEngine) -> None:
    ingest, _ = ingestor(engine, store=Forgetful(EMBEDDING))
    assert len(ingest.ingest([doc("a", "Bees live in the tower.")]).added) == 1
    assert ingest.ingest([doc("a", "Bees live in the tower.")]).skipped == 1
    assert (await ingest.aingest([doc("a", "Bees live in the tower.")])).skipped == 1


async def test_async_does_the_same(tmp_path: Path) -> None:
    documents = [doc("a", "Bees live in the tower.", ANNEX), doc("b", "The ferry leaves at nine.")]
    reports = []
    for number in range(2):
        engine = FakeEngine()
        ingest, store = ingestor(engine, tmp_path / f"{number}.json")
        made: list[IngestReport] = []
        for given, cleanup in [(documents, "incremental"), (documents, "incremental"), (documents[1:], "full")]:
            if number:
                made.append(await ingest.aingest(given, cleanup=cleanup))  # type: ignore[arg-type]
            else:
                made.append(ingest.ingest(given, cleanup=cleanup, progress=False))  # type: ignore[arg-type]
        reports.append(([str(report) for report in made], texts(store), stored(engine)))
    assert reports[0] == reports[1]
    assert (tmp_path / "0.json").read_text() == (tmp_path / "1.json").read_text()


def test_without_an_engine_nothing_is_prewarmed() -> None:
    ingest, store = ingestor()
    report = ingest.ingest([doc("a", "Bees live in the tower.")])
    assert (report.prewarm, len(report.added)) == (None, 1)
    assert len(texts(store)) == 1


def test_the_namespace_of_the_chat_model(engine: FakeEngine) -> None:
    ChunkIngestor(InMemoryVectorStore(EMBEDDING), ChatCachecraft(engine=engine, namespace="tenant")).ingest(
        [doc("a", "Bees live in the tower.")]
    )
    assert set(engine.stored("tenant")) == {chunk_id("Bees live in the tower.")}
    assert stored(engine) == set()


def test_a_run_that_broke_off_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine()
    ingest, store = ingestor(engine, tmp_path / "state.json")
    ingest.ingest([doc("a", "Bees live in the tower.", "Honey is sold on Mondays.")])
    with monkeypatch.context() as broken:
        broken.setattr(engine, "prewarm", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ingest.ingest([doc("a", "Bees live in the tower.")])
    again, _ = ingestor(engine, tmp_path / "state.json", store)
    report = again.ingest([doc("a", "Bees live in the tower.")])
    assert len(report.removed) == 1
    assert texts(store) == ["Bees live in the tower."]
    assert stored(engine) == {chunk_id("Bees live in the tower.")}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("broken", ["add_documents", "delete", "prewarm"])
async def test_what_a_broken_run_stored_is_not_forgotten(
    tmp_path: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, broken: str, asynchronous: bool
) -> None:
    ingest, store = ingestor(engine, tmp_path / "state.json")

    async def run(ingest: ChunkIngestor, *documents: Document, **options: Any) -> IngestReport:
        return await ingest.aingest(documents, **options) if asynchronous else ingest.ingest(documents, **options)

    await run(ingest, doc("a", "Bees live in the tower."))
    with monkeypatch.context() as patch:
        owner = engine if broken == "prewarm" else store
        patch.setattr(owner, f"a{broken}" if asynchronous else broken, lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await run(ingest, doc("a", "Honey is sold on Mondays."))
    for later in (ingest, ingestor(engine, tmp_path / "state.json", store)[0]):
        await run(later, doc("a", "The ferry leaves at nine."))
        assert texts(store) == ["The ferry leaves at nine."]
        assert stored(engine) == {chunk_id("The ferry leaves at nine.")}
    await run(later, cleanup="full")
    assert (texts(store), stored(engine)) == ([], set())


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_point_of_a_broken_run_is_stored_again(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    ingest, store = ingestor(store=Forgetful(EMBEDDING))
    one, two = (Document("Bees live here.", metadata={"source": "a", "date": date}) for date in (1, 2))
    ingest.ingest([one])
    add = store.add_documents

    def broken(*arguments: Any, **options: Any) -> None:
        if lost == "after":
            add(*arguments, **options)
        raise ConnectionError

    with monkeypatch.context() as patch:
        patch.setattr(store, "add_documents", broken)
        with pytest.raises(ConnectionError):
            ingest.ingest([two])
    for document in (one, two) if lost == "after" else (two, one):
        ingest.ingest([document])
        assert [entry["metadata"]["date"] for entry in store.store.values()] == [document.metadata["date"]]


@pytest.mark.parametrize("content", ["", "[]", '{"version": 2}', '{"version": 1, "documents": {"a": {"b": {}}}}'])
def test_a_state_that_is_none_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(InvalidInput, match=r"state\.json is not the state"):
        ingestor(state=tmp_path / "state.json")
    assert (tmp_path / "state.json").read_text() == content


def test_a_state_that_cannot_be_saved_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest, _ = ingestor(state=tmp_path / "state.json")
    monkeypatch.setattr("langchain_cachecraft.ingest_state.json.dump", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ingest.ingest([doc("a", "Bees live in the tower.")])
    assert list(tmp_path.iterdir()) == []


def test_a_document_of_unknown_source_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'source'"):
        ingestor()[0].ingest([Document("Bees live here.")])


def test_an_unknown_cleanup_is_named() -> None:
    with pytest.raises(InvalidInput, match="'scoped'"):
        ingestor()[0].ingest([], cleanup="scoped")  # type: ignore[arg-type]


def test_a_deletion_that_fails_is_said(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    ingest, store = ingestor(engine)
    ingest.ingest([doc("a", "Bees live in the tower.")])
    monkeypatch.setattr(store, "delete", lambda ids: False)
    with pytest.raises(CachecraftError, match="could not delete 1 points"):
        ingest.ingest([], cleanup="full")
    assert stored(engine) == {chunk_id("Bees live in the tower.")}


def test_langchains_index_with_our_keys_into_qdrant(documents: list[Document]) -> None:
    client = QdrantClient(":memory:")
    client.create_collection("c", vectors_config=models.VectorParams(size=8, distance=models.Distance.COSINE))
    store = QdrantVectorStore(client, "c", EMBEDDING)
    records = InMemoryRecordManager("test")
    pieces = assign_chunk_ids(documents)
    options: dict[str, Any] = {"key_encoder": chunk_key, "cleanup": "incremental", "source_id_key": "source"}
    assert index(pieces, records, store, **options)["num_added"] == 3
    again = index(pieces, records, store, **options)
    assert (again["num_added"], again["num_skipped"]) == (0, 3)
    assert {str(point.id) for point in client.scroll("c")[0]} == {piece.id for piece in pieces}
    client.close()


async def test_prewarm(engine: FakeEngine, documents: list[Document]) -> None:
    assert len(prewarm(documents[:2], engine, progress=False).stored) == 2
    report = await aprewarm(documents, ChatCachecraft(engine=engine))
    assert (len(report.stored), len(report.present)) == (1, 2)
    assert engine.delete(document_id="bees") == [chunk_id(documents[0].page_content)]
    prewarm(documents, ChatCachecraft(engine=engine, namespace="tenant"))
    assert len(engine.stored("tenant")) == 3
    prewarm(documents, ChatCachecraft(engine=engine, namespace="tenant"), namespace="other")
    assert len(engine.stored("other")) == 3
