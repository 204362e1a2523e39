"""What the LlamaIndex examples share: an LLM, documents, embeddings."""

from __future__ import annotations

import os
import sys

from llama_index.core import Document, SimpleDirectoryReader
from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.node_parser import SentenceSplitter
from llama_index.llms.cachecraft import Cachecraft

from cachecraft_rag.demo.defaults import MODEL, fitting_dtype, handbook_folder, model_folder
from cachecraft_rag.demo.retrieval import SentenceEmbedder

SPLITTER = SentenceSplitter(chunk_size=160, chunk_overlap=0)


def open_llm(**options: bool) -> Cachecraft:
    """With the model that is the script's argument, or in CACHECRAFT_MODEL, or else that of the demonstration."""
    model = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CACHECRAFT_MODEL", MODEL)
    engine_options = {"dtype": fitting_dtype("auto"), "max_model_len": 4096}
    return Cachecraft(model_folder(model), engine_options=engine_options, max_tokens=40, **options)


def handbook(pattern: str = "0*.md") -> list[Document]:
    """Some documents of the handbook in `examples/handbook`, whole; their ids are their paths."""
    paths = sorted(handbook_folder().glob(pattern))
    return SimpleDirectoryReader(input_files=paths, filename_as_id=True).load_data()


class MiniLM(BaseEmbedding):
    """The embedding model of the demonstration."""

    _embedder: SentenceEmbedder = PrivateAttr(default_factory=SentenceEmbedder)

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        rows: list[list[float]] = self._embedder.encode(texts).tolist()
        return rows

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)
