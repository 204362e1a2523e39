"""Transformations for an `IngestionPipeline`: ids for chunks, and their caches computed ahead."""

from __future__ import annotations

import logging
import os
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.schema import BaseNode, RelatedNodeInfo, RelatedNodeType, TransformComponent
from llama_index.llms.cachecraft.llm import Cachecraft
from llama_index.llms.cachecraft.nodes import chunk_of, source_of, with_chunk_id

from cachecraft_rag.answer import PrewarmReport
from cachecraft_rag.chunk import Chunk, point_id
from cachecraft_rag.errors import InvalidInput

logger = logging.getLogger(__name__)


class AssignChunkIds(TransformComponent):
    """Gives nodes their chunk's id, and a node id that is the same in every process. Put it behind the splitter.

    The text that the LLM sees becomes free of metadata, but for `llm_metadata_keys`: with a date or a path in it the
    same text would be another chunk after every copy. The chunk's id is in `metadata["chunk_id"]`. A node's id comes
    from its document's id (where that is random, from its file's path and page) and its chunk, so that vector stores
    replace it when the file is read again. Returns copies; nodes without text stay as they are.
    """

    llm_metadata_keys: list[str] = Field(default_factory=list, description="Metadata that the LLM shall see.")
    node_ids: bool = Field(default=True, description="Whether nodes get new ids.")

    @classmethod
    def class_name(cls) -> str:
        return "AssignChunkIds"

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        marked = [self._marked(node) for node in nodes]
        return _renamed(marked) if self.node_ids else marked

    def _marked(self, node: BaseNode) -> BaseNode:
        hidden = [key for key in node.metadata if key not in self.llm_metadata_keys]
        shown = [key for key in node.excluded_llm_metadata_keys if key not in self.llm_metadata_keys]
        bare = node.model_copy(update={"excluded_llm_metadata_keys": list(dict.fromkeys([*shown, *hidden]))})
        chunk = chunk_of(bare)
        return node if chunk is None else with_chunk_id(bare, chunk)


class PrewarmChunks(TransformComponent):
    """Computes and keeps the KV of nodes' chunks that the LLM's engine does not have yet. Put it at the end.

    It runs each time, whatever the pipeline's cache holds, since caches live as long as their engine and no longer.
    For that the pipeline's cache gets a new entry at each run, which is never read: where it shall not grow, call
    `PrewarmChunks(llm)(nodes)` on what the pipeline returns, or give the pipeline `disable_cache=True`.
    `report` says what the last run did. Raises `InvalidInput` in a worker process, where no engine is.
    """

    _llm: Cachecraft | None = PrivateAttr(default=None)
    _process: int = PrivateAttr(default_factory=os.getpid)
    _report: PrewarmReport | None = PrivateAttr(default=None)

    def __init__(self, llm: Cachecraft) -> None:
        super().__init__()
        self._llm = llm

    @classmethod
    def class_name(cls) -> str:
        return "PrewarmChunks"

    @property
    def report(self) -> PrewarmReport | None:
        return self._report

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        """Never twice the same, so that a pipeline's cache has no entry for it."""
        return {**super().to_dict(**kwargs), "run": uuid.uuid4().hex}

    def __call__(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        llm, chunks = self._begin(nodes)
        if chunks:
            self._end(llm.engine.prewarm(chunks, namespace=llm.namespace, progress=False))
        return nodes

    async def acall(self, nodes: Sequence[BaseNode], **kwargs: Any) -> Sequence[BaseNode]:
        llm, chunks = self._begin(nodes)
        if chunks:
            engine = await llm.aengine()
            self._end(await engine.aprewarm(chunks, namespace=llm.namespace, progress=False))
        return nodes

    def __reduce__(self) -> tuple[Any, ...]:
        return (_without_engine, (self._process,))

    def _begin(self, nodes: Sequence[BaseNode]) -> tuple[Cachecraft, list[Chunk]]:
        if self._llm is None:
            raise InvalidInput(
                f"PrewarmChunks was sent from process {self._process} to {os.getpid()}, but the engine stayed behind: "
                "run the pipeline without worker processes (num_workers=None), or call PrewarmChunks(llm)(nodes) on "
                "what the pipeline returns"
            )
        chunks = [chunk for node in nodes if (chunk := chunk_of(node)) is not None]
        self._llm.remember(chunks)
        self._report = PrewarmReport()
        return self._llm, chunks

    def _end(self, report: PrewarmReport) -> None:
        self._report = report
        for chunk_id, reason in report.refused.items():
            logger.warning("chunk %s was not prewarmed: %s", chunk_id, reason)


def _without_engine(process: int) -> PrewarmChunks:
    made = PrewarmChunks.model_construct()
    made._process = process
    return made


def _renamed(nodes: Sequence[BaseNode]) -> list[BaseNode]:
    """Copies with ids that depend on source and chunk alone; a text that a source repeats is counted."""
    seen: Counter[str] = Counter()
    new_ids: dict[str, str] = {}
    for node in nodes:
        if chunk := chunk_of(node):
            source = source_of(node.metadata, node.ref_doc_id)
            new_id = point_id(source, chunk.id)
            seen[new_id] += 1
            new_ids[node.node_id] = new_id if seen[new_id] == 1 else point_id(f"{source}\0{seen[new_id]}", chunk.id)
    return [
        node.model_copy(
            update={
                "id_": new_ids.get(node.node_id, node.node_id),
                "relationships": {kind: _related(related, new_ids) for kind, related in node.relationships.items()},
            }
        )
        for node in nodes
    ]


def _related(related: RelatedNodeType, new_ids: dict[str, str]) -> RelatedNodeType:
    if isinstance(related, RelatedNodeInfo):
        return related.model_copy(update={"node_id": new_ids.get(related.node_id, related.node_id)})
    return [one.model_copy(update={"node_id": new_ids.get(one.node_id, one.node_id)}) for one in related]
