"""Nodes as chunks."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from llama_index.core.base.llms.types import CitableBlock, TextBlock
from llama_index.core.schema import BaseNode, MetadataMode

from cachecraft_rag.chunk import Chunk

CHUNK_ID = "chunk_id"  # key in a node's metadata
# Keys by which LlamaIndex's readers tell the documents of one file apart.
PART_KEYS = (
    "page_label",
    "page",
    "page_number",
    "page_num",
    "page_idx",
    "source",
    "slide",
    "slide_number",
    "sheet",
    "sheet_name",
    "row",
    "row_number",
    "part",
)


def source_of(metadata: Mapping[str, Any], document_id: str | None) -> str:
    """The document's id; where that is random, its file's path and its part of the file, which every reading repeats.

    What has a random id and no path keeps its id.
    """
    path = metadata.get("file_path")
    if not path or not is_random(document_id):
        return document_id or ""
    part = "&".join(f"{key}={metadata[key]}" for key in PART_KEYS if metadata.get(key) is not None)
    return f"{path}#{part}" if part else str(path)


def is_random(document_id: str | None) -> bool:
    """LlamaIndex's readers give a new uuid4 to each document they read, unless asked for something better."""
    try:
        return uuid.UUID(document_id or "").version == 4
    except ValueError:
        return not document_id


def chunk_of(node: BaseNode) -> Chunk | None:
    """What the LLM sees of a node, as a chunk of the node's source; None if that is nothing."""
    text = node.get_content(MetadataMode.LLM)
    return Chunk(text, source_of(node.metadata, node.ref_doc_id) or None) if text.strip() else None


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
