"""Nodes as chunks."""

from __future__ import annotations

from llama_index.core.base.llms.types import CitableBlock, TextBlock
from llama_index.core.schema import BaseNode, MetadataMode

from cachecraft_rag.chunk import Chunk

CHUNK_ID = "chunk_id"  # key in a node's metadata


def chunk_of(node: BaseNode) -> Chunk | None:
    """What the LLM sees of a node, as a chunk of the node's document; None if that is nothing."""
    text = node.get_content(MetadataMode.LLM)
    return Chunk(text, node.ref_doc_id) if text.strip() else None


def block_of(chunk: Chunk) -> CitableBlock:
    return CitableBlock(title=chunk.document_id or "", source=chunk.id, content=[TextBlock(text=chunk.text)])


def with_chunk_id(node: BaseNode, chunk: Chunk) -> BaseNode:
    """A copy whose metadata hold the chunk's id, seen by neither the LLM nor the embedding."""
    return node.model_copy(
        update={
            "metadata": {**node.metadata, CHUNK_ID: chunk.id},
            "excluded_llm_metadata_keys": _with(node.excluded_llm_metadata_keys),
            "excluded_embed_metadata_keys": _with(node.excluded_embed_metadata_keys),
        }
    )


def _with(keys: list[str]) -> list[str]:
    return keys if CHUNK_ID in keys else [*keys, CHUNK_ID]
