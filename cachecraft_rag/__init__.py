"""Fast retrieval-augmented generation on vLLM: the KV cache of each chunk, reused at any position."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachecraft_rag.answer import Answer
    from cachecraft_rag.chunk import Chunk, chunk_id
    from cachecraft_rag.config import EngineConfig
    from cachecraft_rag.engine import ChunkEngine
    from cachecraft_rag.errors import CachecraftError
    from cachecraft_rag.prompt import ChunkPrompt, Text
    from cachecraft_rag.report import RequestReport

_HOMES = {
    "Answer": "answer",
    "CachecraftError": "errors",
    "Chunk": "chunk",
    "ChunkEngine": "engine",
    "ChunkPrompt": "prompt",
    "EngineConfig": "config",
    "RequestReport": "report",
    "Text": "prompt",
    "chunk_id": "chunk",
}
__all__ = [
    "Answer",
    "CachecraftError",
    "Chunk",
    "ChunkEngine",
    "ChunkPrompt",
    "EngineConfig",
    "RequestReport",
    "Text",
    "chunk_id",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
