"""LangChain's documents as chunks: ids that are the same in every process, whatever the metadata says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from langchain_core.documents import Document

from cachecraft_rag.chunk import Chunk, point_id

CHUNK_ID, DOCUMENT_ID = "chunk_id", "document_id"  # keys of the metadata
SOURCE = "source"  # where LangChain's loaders put the file's name
_STORES_OWN = ("_id", "_collection_name")  # what langchain-qdrant adds to the metadata of what it finds


def document_id_of(document: Document) -> str | None:
    """Which document a piece is part of: `document_id` in its metadata, else `source`, else unknown.

    A source that is a file here is named by its whole path, so that the working directory has no say.
    """
    if document.metadata.get(DOCUMENT_ID) is not None:
        return str(document.metadata[DOCUMENT_ID])
    source = document.metadata.get(SOURCE)
    if source is None:
        return None
    return os.path.realpath(str(source)) if os.path.isfile(str(source)) else str(source)  # noqa: PTH113


def chunk_of(document: Document) -> Chunk:
    """The chunk that a document's text is. Raises `InvalidInput` if there is nothing but white space.

    Its id is always made from the text: an id that came along may be another text's, or a database's own.
    """
    return Chunk(document.page_content, document_id_of(document), document.metadata)


def chunk_key(document: Document) -> str:
    """The id of a document's point in a vector store, a UUID, for `index(..., key_encoder=chunk_key)`.

    It tells sources of the same text apart, and depends on nothing else. The chunk's id is the same for all of them.
    """
    return _key(chunk_of(document))


def assign_chunk_ids(documents: Iterable[Document]) -> list[Document]:
    """Copies of a splitter's output with `chunk_id`, and `document_id` where known, in the metadata, and `id` = key."""
    return [with_chunk_id(document, chunk_of(document)) for document in documents]


def with_chunk_id(document: Document, chunk: Chunk, key: str | None = None) -> Document:
    """A copy that says which chunk it is. `key`: its id, by default `chunk_key`."""
    metadata = {name: value for name, value in document.metadata.items() if name not in _STORES_OWN}
    metadata[CHUNK_ID] = chunk.id
    if chunk.document_id is not None:
        metadata[DOCUMENT_ID] = chunk.document_id
    return Document(id=key or _key(chunk), page_content=document.page_content, metadata=metadata)


def stored_key(document: Document) -> Any:
    """The id that a vector store gave to what it found, or None: some put it only into the metadata."""
    return document.id or document.metadata.get("_id")


def _key(chunk: Chunk) -> str:
    return chunk.id if chunk.document_id is None else point_id(chunk.document_id, chunk.id)
