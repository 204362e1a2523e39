"""`ChunkIngestor`: documents into a vector store and their caches into the engine, as one call."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from langchain_core.documents import BaseDocumentTransformer, Document
from langchain_core.vectorstores import VectorStore

from cachecraft_rag.answer import PrewarmReport
from cachecraft_rag.errors import CachecraftError, InvalidInput
from cachecraft_rag.interface import Engine
from langchain_cachecraft.chat_model import ChatCachecraft
from langchain_cachecraft.documents import stored_key
from langchain_cachecraft.ingest_plan import IngestPlan, plan_ingestion
from langchain_cachecraft.ingest_state import IngestState
from langchain_cachecraft.prewarming import own_namespace, serving_engine

Cleanup = Literal["incremental", "full"]


@dataclass(frozen=True, slots=True)
class IngestReport:
    """`added`: ids of the points that were embedded and stored; `skipped`: how many were there already, unchanged.

    `removed`: ids of the points that were taken out; `dropped`: ids of the chunks whose caches were; `prewarm`: what
    became of the caches of the others, None without an engine.
    """

    added: tuple[str, ...]
    skipped: int
    removed: tuple[str, ...]
    dropped: tuple[str, ...]
    prewarm: PrewarmReport | None

    def __str__(self) -> str:
        summary = (
            f"{len(self.added)} chunks embedded, {self.skipped} were there, {len(self.removed)} removed, caches of "
            f"{len(self.dropped)} dropped"
        )
        return summary if self.prewarm is None else f"{summary}\nprewarmed: {self.prewarm}"


class ChunkIngestor:
    """Splits, gives ids, embeds, upserts and prewarms; again and again, in any process, it does only what is new.

    `splitter`: any of LangChain's; None takes documents as chunks. `engine`: an engine or a chat model; without one
    nothing is prewarmed. `state`: the file that remembers, between processes, what is in this vector store; None
    remembers until this object goes. One ingestor at a time may use a file.
    """

    def __init__(
        self,
        vector_store: VectorStore,
        engine: Engine | ChatCachecraft | None = None,
        *,
        splitter: BaseDocumentTransformer | None = None,
        state: str | os.PathLike[str] | None = None,
        namespace: str | None = None,
    ) -> None:
        self._vector_store = vector_store
        self._engine = engine
        self._splitter = splitter
        self._path = None if state is None else Path(state)
        self._state = IngestState.load(self._path)
        self._namespace = namespace or (None if engine is None else own_namespace(engine))

    def ingest(
        self, documents: Iterable[Document], *, cleanup: Cleanup = "incremental", progress: bool = True
    ) -> IngestReport:
        """`cleanup`: what is removed, points and caches. "incremental": what the given documents no longer hold;
        "full": also every document that is not given.

        Each document needs `source` or `document_id` in its metadata. The state is saved first, with all
        that may be stored now, and last, so a run that broke off is made good by the next one.
        """
        plan = self._begin(list(documents), cleanup)
        added = plan.to_add(self._stored(plan.unchanged))
        if added:
            self._vector_store.add_documents(added, ids=_keys(added))
        if plan.gone_points:
            _check(self._vector_store.delete(list(plan.gone_points)), plan.gone_points)
        dropped: list[str] = []
        prewarmed = None
        if self._engine is not None:
            engine = serving_engine(self._engine)
            if plan.gone_chunks:
                dropped += engine.delete(chunk_ids=plan.gone_chunks, namespace=self._namespace)
            prewarmed = PrewarmReport()
            if plan.chunks:
                prewarmed = engine.prewarm(plan.chunks, namespace=self._namespace, progress=progress)
            for name in plan.gone_documents:  # now that its chunks belong to the others that have them, too
                dropped += engine.delete(document_id=name, namespace=self._namespace)
        return self._finish(plan, added, dropped, prewarmed)

    async def aingest(self, documents: Iterable[Document], *, cleanup: Cleanup = "incremental") -> IngestReport:
        """`ingest` for tasks."""
        plan = await asyncio.to_thread(self._begin, list(documents), cleanup)
        added = plan.to_add(await self._astored(plan.unchanged))
        if added:
            await self._vector_store.aadd_documents(added, ids=_keys(added))
        if plan.gone_points:
            _check(await self._vector_store.adelete(list(plan.gone_points)), plan.gone_points)
        dropped: list[str] = []
        prewarmed = None
        if self._engine is not None:
            engine = await asyncio.to_thread(serving_engine, self._engine)
            if plan.gone_chunks:
                dropped += await engine.adelete(chunk_ids=plan.gone_chunks, namespace=self._namespace)
            prewarmed = PrewarmReport()
            if plan.chunks:
                prewarmed = await engine.aprewarm(plan.chunks, namespace=self._namespace)
            for name in plan.gone_documents:  # now that its chunks belong to the others that have them, too
                dropped += await engine.adelete(document_id=name, namespace=self._namespace)
        return await asyncio.to_thread(self._finish, plan, added, dropped, prewarmed)

    def _begin(self, documents: Sequence[Document], cleanup: str) -> IngestPlan:
        if cleanup not in ("incremental", "full"):
            raise InvalidInput(f"cleanup={cleanup!r} is not possible: give 'incremental' or 'full'")
        pieces = documents if self._splitter is None else self._splitter.transform_documents(documents)
        plan = plan_ingestion(documents, pieces, self._state, full=cleanup == "full")
        self._remember(plan.meanwhile)
        return plan

    def _stored(self, keys: Sequence[str]) -> list[str]:
        """Which of these points the vector store really has; all, where it cannot tell."""
        try:
            return [str(stored_key(document)) for document in self._vector_store.get_by_ids(keys)] if keys else []
        except NotImplementedError:
            return list(keys)

    async def _astored(self, keys: Sequence[str]) -> list[str]:
        try:
            found = await self._vector_store.aget_by_ids(keys) if keys else []
        except NotImplementedError:
            return list(keys)
        return [str(stored_key(document)) for document in found]

    def _finish(
        self, plan: IngestPlan, added: Sequence[Document], dropped: Sequence[str], prewarmed: PrewarmReport | None
    ) -> IngestReport:
        self._remember(plan.state)
        return IngestReport(
            added=tuple(_keys(added)),
            skipped=len(plan.pieces) - len(added),
            removed=plan.gone_points,
            dropped=tuple(dict.fromkeys(dropped)),
            prewarm=prewarmed,
        )

    def _remember(self, state: IngestState) -> None:
        state.save(self._path)
        self._state = state


def _keys(documents: Iterable[Document]) -> list[str]:
    return [str(document.id) for document in documents]


def _check(deleted: bool | None, keys: Sequence[str]) -> None:
    if deleted is False:
        raise CachecraftError(f"the vector store could not delete {len(keys)} points ({keys[0]}, ...): try again")
