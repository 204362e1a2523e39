"""`ChunkRetriever`: what any retriever finds, with chunk ids."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import ensure_config, patch_config
from pydantic import Field

from cachecraft_rag.chunk import Chunk
from langchain_cachecraft.chat_model import ChatCachecraft
from langchain_cachecraft.documents import chunk_of, stored_key, with_chunk_id

_log = logging.getLogger(__name__)


class ChunkRetriever(BaseRetriever):
    """Wraps a retriever: each document it finds gets `chunk_id` and `document_id` in its metadata, and an id.

    Ids are made from the texts, so retrievers that lose them (compressors, parent documents, ensembles) do no harm: a
    text that was never prewarmed is a miss in the report. With `llm` the chunks are remembered for its
    `recover_chunks`, and their caches are fetched ahead while the chain goes on, where its engine runs and can do so.
    `k` cuts the list off, in the constructor or in `invoke(query, k=...)`, which also goes to the wrapped retriever.
    """

    retriever: Runnable[str, list[Document]]
    llm: ChatCachecraft | None = Field(default=None, exclude=True)
    k: int | None = None

    def invoke(
        self,
        input: str,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        return super().invoke(input, config, caller_config=ensure_config(config), **kwargs)

    async def ainvoke(
        self,
        input: str,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        return await super().ainvoke(input, config, caller_config=ensure_config(config), **kwargs)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,
        caller_config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        limit, options = self._options(kwargs)
        config = patch_config(caller_config, callbacks=run_manager.get_child())
        return self._returned(self.retriever.invoke(query, config, **options)[:limit])

    async def _aget_relevant_documents(
        self,
        query: str,
        *,
        run_manager: AsyncCallbackManagerForRetrieverRun,
        caller_config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        limit, options = self._options(kwargs)
        config = patch_config(caller_config, callbacks=run_manager.get_child())
        found = await self.retriever.ainvoke(query, config, **options)
        return self._returned(found[:limit])

    def _options(self, keywords: dict[str, Any]) -> tuple[int | None, dict[str, Any]]:
        """The greatest number of documents, and the wrapped retriever's keywords: retrievers skip what they don't know,
        other runnables don't."""
        options = keywords if self.k is None else {"k": self.k, **keywords}
        limit = options.get("k")
        if not isinstance(self.retriever, BaseRetriever):
            options = {name: value for name, value in options.items() if name != "k"}
        return limit, options

    def _returned(self, found: Sequence[Document]) -> list[Document]:
        documents: list[Document] = []
        chunks: list[Chunk] = []
        for document in found:
            if not document.page_content.strip():
                documents.append(document)
                continue
            chunk = chunk_of(document)
            key = stored_key(document)
            documents.append(with_chunk_id(document, chunk, None if key is None else str(key)))
            chunks.append(chunk)
        if self.llm is not None:
            self.llm.recent_chunks.remember(chunks)
            _prefetch(self.llm, chunks)
        return documents


def _prefetch(llm: ChatCachecraft, chunks: Sequence[Chunk]) -> None:
    """Never starts an engine, and never fails: without it the request itself fetches."""
    prefetch = getattr(llm.started_engine, "prefetch", None)
    if prefetch is None or not chunks:
        return
    try:
        prefetch(chunks, namespace=llm.namespace)
    except Exception:
        _log.warning("caches of %d chunks could not be fetched ahead", len(chunks), exc_info=True)
