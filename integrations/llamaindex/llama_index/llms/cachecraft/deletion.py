"""Deleting a document everywhere: from the index, and the KV of its chunks from the engine."""

from __future__ import annotations

from llama_index.core.indices.base import BaseIndex
from llama_index.core.ingestion import IngestionPipeline
from llama_index.llms.cachecraft.llm import Cachecraft


def delete_ref_doc(
    ref_doc_id: str,
    llm: Cachecraft,
    *,
    index: BaseIndex | None = None,  # type: ignore[type-arg]
    pipeline: IngestionPipeline | None = None,
) -> list[str]:
    """Returns the ids of the chunks whose KV is gone: those that no other document shares.

    `index`, `pipeline`: where the document's nodes are deleted too.
    """
    if index is not None:
        index.delete_ref_doc(ref_doc_id, delete_from_docstore=True)
    if pipeline is not None:
        if pipeline.vector_store is not None:
            pipeline.vector_store.delete(ref_doc_id)
        if pipeline.docstore is not None:
            pipeline.docstore.delete_document(ref_doc_id, raise_error=False)
    return llm.engine.delete(document_id=ref_doc_id, namespace=llm.namespace)


async def adelete_ref_doc(
    ref_doc_id: str,
    llm: Cachecraft,
    *,
    index: BaseIndex | None = None,  # type: ignore[type-arg]
    pipeline: IngestionPipeline | None = None,
) -> list[str]:
    """`delete_ref_doc` for tasks."""
    if index is not None:
        await index.adelete_ref_doc(ref_doc_id, delete_from_docstore=True)
    if pipeline is not None:
        if pipeline.vector_store is not None:
            await pipeline.vector_store.adelete(ref_doc_id)
        if pipeline.docstore is not None:
            await pipeline.docstore.adelete_document(ref_doc_id, raise_error=False)
    engine = await llm.aengine()
    return await engine.adelete(document_id=ref_doc_id, namespace=llm.namespace)
