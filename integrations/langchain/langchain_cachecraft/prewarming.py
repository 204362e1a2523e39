"""Computing the caches of documents ahead of the questions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from langchain_core.documents import Document

from cachecraft_rag.answer import PrewarmReport
from cachecraft_rag.interface import Engine
from langchain_cachecraft.chat_model import ChatCachecraft
from langchain_cachecraft.documents import chunk_of


def prewarm(
    documents: Iterable[Document],
    engine: Engine | ChatCachecraft,
    *,
    namespace: str | None = None,
    pin: bool = False,
    progress: bool = True,
) -> PrewarmReport:
    """Compute and keep the KV of all chunks that are not stored yet; what is there costs nothing.

    `engine`: an engine, or the chat model whose engine is meant. `namespace=None`: the chat model's, else the engine's.
    `pin` keeps the chunks from being evicted; `progress` shows a bar.
    """
    serving = serving_engine(engine)
    chunks = [chunk_of(document) for document in documents]
    return serving.prewarm(chunks, namespace=namespace or own_namespace(engine), pin=pin, progress=progress)


async def aprewarm(
    documents: Iterable[Document],
    engine: Engine | ChatCachecraft,
    *,
    namespace: str | None = None,
    pin: bool = False,
    progress: bool = False,
) -> PrewarmReport:
    """`prewarm` for tasks."""
    serving = await asyncio.to_thread(serving_engine, engine)
    chunks = [chunk_of(document) for document in documents]
    return await serving.aprewarm(chunks, namespace=namespace or own_namespace(engine), pin=pin, progress=progress)


def serving_engine(engine: Engine | ChatCachecraft) -> Engine:
    """The engine itself, or that of a chat model, which is started if it wasn't yet."""
    return engine.start() if isinstance(engine, ChatCachecraft) else engine


def own_namespace(engine: Engine | ChatCachecraft) -> str | None:
    return engine.namespace if isinstance(engine, ChatCachecraft) else None
