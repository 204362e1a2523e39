"""LangChain over cachecraft-rag: the KV cache of retrieved chunks is reused wherever they stand in the prompt."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langchain_cachecraft.chat_model import ChatCachecraft
    from langchain_cachecraft.documents import assign_chunk_ids, chunk_key
    from langchain_cachecraft.ingest import ChunkIngestor, IngestReport
    from langchain_cachecraft.prewarming import aprewarm, prewarm
    from langchain_cachecraft.prompt import ChunkPromptTemplate
    from langchain_cachecraft.retriever import ChunkRetriever

_HOMES = {
    "ChatCachecraft": "chat_model",
    "ChunkIngestor": "ingest",
    "ChunkPromptTemplate": "prompt",
    "ChunkRetriever": "retriever",
    "IngestReport": "ingest",
    "aprewarm": "prewarming",
    "assign_chunk_ids": "documents",
    "chunk_key": "documents",
    "prewarm": "prewarming",
}
__all__ = [
    "ChatCachecraft",
    "ChunkIngestor",
    "ChunkPromptTemplate",
    "ChunkRetriever",
    "IngestReport",
    "aprewarm",
    "assign_chunk_ids",
    "chunk_key",
    "prewarm",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
