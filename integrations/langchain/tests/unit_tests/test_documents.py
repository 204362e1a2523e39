"""Ids of documents."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID

import pytest
from langchain_cachecraft import assign_chunk_ids, chunk_key
from langchain_core.documents import Document

from cachecraft_rag import chunk_id
from cachecraft_rag.errors import InvalidInput


def test_ids_depend_on_text_and_source_alone() -> None:
    one = Document("text", metadata={"source": "a", "date": 1})
    same = Document(" text\n", metadata={"source": "a", "date": 2}, id="x")
    other = Document("text", metadata={"source": "b"})
    assert chunk_key(one) == chunk_key(same) != chunk_key(other)
    assert str(UUID(chunk_key(one))) == chunk_key(one)
    made = assign_chunk_ids([one, same, other])
    assert {document.metadata["chunk_id"] for document in made} == {chunk_id("text")}
    assert [document.metadata["document_id"] for document in made] == ["a", "a", "b"]
    assert [document.id for document in made] == [chunk_key(one), chunk_key(one), chunk_key(other)]


def test_what_was_given_is_not_changed() -> None:
    document = Document("text", metadata={"source": "a"})
    assign_chunk_ids([document])
    assert (document.id, document.metadata) == (None, {"source": "a"})


def test_assigned_twice_is_assigned_once() -> None:
    once = assign_chunk_ids([Document("text", metadata={"source": "a"})])
    assert assign_chunk_ids(once) == once
    assert chunk_key(once[0]) == once[0].id


def test_without_a_source_the_key_is_the_chunks_id() -> None:
    [made] = assign_chunk_ids([Document("text")])
    assert made.id == made.metadata["chunk_id"] == chunk_id("text")
    assert "document_id" not in made.metadata


def test_a_document_id_goes_before_the_source() -> None:
    assert chunk_key(Document("text", metadata={"source": "a", "document_id": "d"})) == chunk_key(
        Document("text", metadata={"source": "d"})
    )


def test_a_file_is_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("text")
    keys = set()
    for folder, source in [(tmp_path, "docs/a.md"), (tmp_path / "docs", "a.md"), (tmp_path / "docs", "../docs/a.md")]:
        monkeypatch.chdir(folder)
        keys.add(chunk_key(Document("text", metadata={"source": source})))
        keys.add(chunk_key(Document("text", metadata={"source": os.fspath(tmp_path / "docs" / "a.md")})))
    assert len(keys) == 1


def test_a_stale_id_is_replaced_by_that_of_the_text() -> None:
    [made] = assign_chunk_ids([Document("new text", metadata={"chunk_id": chunk_id("old text"), "source": "a"})])
    assert made.metadata["chunk_id"] == chunk_id("new text")


@pytest.mark.parametrize("text", ["", " \n"])
def test_empty_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="white space"):
        assign_chunk_ids([Document(text)])
