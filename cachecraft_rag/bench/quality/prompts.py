"""How a question is put to the model; one wording for all ways to answer."""

from __future__ import annotations

from collections.abc import Iterable

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.prompt import ChunkPrompt

INSTRUCTION = "Answer the question in a few words."


def ask(chunks: Iterable[Chunk], question: str) -> ChunkPrompt:
    return ChunkPrompt.chat(chunks, _asked(question))


def ask_without_context(question: str) -> ChunkPrompt:
    return ChunkPrompt.from_messages([{"role": "user", "content": _asked(question)}])


def _asked(question: str) -> str:
    return f"{INSTRUCTION}\nQuestion: {question}"
