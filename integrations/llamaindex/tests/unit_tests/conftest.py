"""A fake engine, an LLM over it, and an index that needs no model."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core import Settings
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.llms.cachecraft import Cachecraft

from cachecraft_rag.testing import FakeEngine


class WordEmbedding(BaseEmbedding):
    """A bag of hashed words: texts that share words are near."""

    dimensions: int = 64

    def _get_text_embedding(self, text: str) -> list[float]:
        vector = [1e-3] * self.dimensions
        for word in text.lower().split():
            vector[int(hashlib.sha256(word.strip(".,?!").encode()).hexdigest(), 16) % self.dimensions] += 1.0
        length = math.sqrt(sum(value * value for value in vector))
        return [value / length for value in vector]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


@pytest.fixture
def embedding() -> BaseEmbedding:
    return WordEmbedding()


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def llm(engine: FakeEngine) -> Cachecraft:
    return Cachecraft(engine=engine)


@pytest.fixture(autouse=True)
def _no_default_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """LlamaIndex would look for OpenAI's where none is given."""
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.setattr(Settings, "_embed_model", None)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def scored() -> Callable[..., list[NodeWithScore]]:
    """`scored("text", ...)`: retrieved nodes with these texts, all of the document "doc"."""

    def make(*texts: str, document: str = "doc", **options: Any) -> list[NodeWithScore]:
        nodes = []
        for number, text in enumerate(texts):
            node = TextNode(text=text, id_=f"{document}-{number}", **options)
            node.relationships = {}
            nodes.append(NodeWithScore(node=_of(node, document), score=1.0 - number / 100))
        return nodes

    return make


def _of(node: TextNode, document: str) -> TextNode:
    from llama_index.core.schema import NodeRelationship, RelatedNodeInfo

    node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document)
    return node
