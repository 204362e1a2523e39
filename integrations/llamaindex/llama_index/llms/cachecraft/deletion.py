"""Deleting a document everywhere: from the index, and the KV of its chunks from the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

from llama_index.core.indices.base import BaseIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.vector_stores import MetadataFilter, MetadataFilters, SimpleVectorStore
from llama_index.llms.cachecraft.llm import Cachecraft
from llama_index.llms.cachecraft.nodes import is_random, source_of


def delete_ref_doc(
    ref_doc_id: str,
    llm: Cachecraft,
    *,
    index: BaseIndex | None = None,  # type: ignore[type-arg]
    pipeline: IngestionPipeline | None = None,
) -> list[str]:
    """Returns the ids of the chunks whose KV is gone: those that no other document shares.

    `index`, `pipeline`: where the document's nodes are deleted too. Caches belong to the document's id, or where that
    is random to its file's path and page. These are read from the document store or the vector store; where neither
    is given or can tell, read documents with `filename_as_id=True`.
    """
    sources = _sources(ref_doc_id, index, pipeline)
    if index is not None:
        index.delete_ref_doc(ref_doc_id, delete_from_docstore=True)
    if pipeline is not None:
        if pipeline.vector_store is not None:
            pipeline.vector_store.delete(ref_doc_id)
        if pipeline.docstore is not None:
            pipeline.docstore.delete_document(ref_doc_id, raise_error=False)
    return [
        chunk_id for source in sources for chunk_id in llm.engine.delete(document_id=source, namespace=llm.namespace)
    ]


async def adelete_ref_doc(
    ref_doc_id: str,
    llm: Cachecraft,
    *,
    index: BaseIndex | None = None,  # type: ignore[type-arg]
    pipeline: IngestionPipeline | None = None,
) -> list[str]:
    """`delete_ref_doc` for tasks."""
    sources = await asyncio.to_thread(_sources, ref_doc_id, index, pipeline)
    if index is not None:
        await index.adelete_ref_doc(ref_doc_id, delete_from_docstore=True)
    if pipeline is not None:
        if pipeline.vector_store is not None:
            await pipeline.vector_store.adelete(ref_doc_id)
        if pipeline.docstore is not None:
            await pipeline.docstore.adelete_document(ref_doc_id, raise_error=False)
    engine = await llm.aengine()
    return [
        chunk_id for source in sources for chunk_id in await engine.adelete(document_id=source, namespace=llm.namespace)
    ]


def _sources(ref_doc_id: str, index: BaseIndex | None, pipeline: IngestionPipeline | None) -> list[str]:  # type: ignore[type-arg]
    """Whom the engine knows as the owner of the document's chunks."""
    if not is_random(ref_doc_id):
        return [ref_doc_id]
    found = [source_of(metadata, ref_doc_id) for metadata in _metadata(ref_doc_id, index, pipeline)]
    return list(dict.fromkeys([ref_doc_id, *found]))


def _metadata(
    ref_doc_id: str,
    index: BaseIndex | None,  # type: ignore[type-arg]
    pipeline: IngestionPipeline | None,
) -> Iterator[Mapping[str, Any]]:
    """What the stores keep about the document."""
    if index is not None:
        info = index.docstore.get_ref_doc_info(ref_doc_id)
        if info is not None:
            yield info.metadata
        yield from _stored(index.storage_context.vector_stores.get("default"), ref_doc_id)
    if pipeline is not None:
        document = pipeline.docstore and pipeline.docstore.get_document(ref_doc_id, raise_error=False)
        if document:
            yield document.metadata
        yield from _stored(pipeline.vector_store, ref_doc_id)


def _stored(store: Any, ref_doc_id: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(store, SimpleVectorStore):
        owners = store.data.text_id_to_ref_doc_id
        yield from (found for name, found in store.data.metadata_dict.items() if owners.get(name) == ref_doc_id)
    elif store is not None:
        try:
            nodes = store.get_nodes(filters=MetadataFilters(filters=[MetadataFilter(key="doc_id", value=ref_doc_id)]))
        except (NotImplementedError, AttributeError):  # not every store can look up
            return
        yield from (node.metadata for node in nodes)
