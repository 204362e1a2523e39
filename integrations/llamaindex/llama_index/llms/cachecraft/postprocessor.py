"""Chunk ids for retrieved nodes."""

from __future__ import annotations

from llama_index.core.bridge.pydantic import Field
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import NodeWithScore, QueryBundle
from llama_index.llms.cachecraft.llm import Cachecraft
from llama_index.llms.cachecraft.nodes import chunk_of, with_chunk_id


class ChunkIdPostprocessor(BaseNodePostprocessor):
    """Puts the id of each node's chunk into `metadata["chunk_id"]`, computed from the text the LLM will see.

    With `llm` the chunks are remembered there, for `recover_chunks`. Put it last. Returns copies.
    """

    llm: Cachecraft | None = Field(default=None, exclude=True)

    @classmethod
    def class_name(cls) -> str:
        return "ChunkIdPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        found = [(node, chunk_of(node.node)) for node in nodes]
        if self.llm is not None:
            self.llm.remember(chunk for _, chunk in found if chunk is not None)
        return [
            node if chunk is None else NodeWithScore(node=with_chunk_id(node.node, chunk), score=node.score)
            for node, chunk in found
        ]
