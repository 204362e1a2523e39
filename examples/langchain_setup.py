"""What the LangChain examples share: a chat model, documents, embeddings."""

from __future__ import annotations

import os
import sys

from langchain_cachecraft import ChatCachecraft
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_text_splitters import RecursiveCharacterTextSplitter

from cachecraft_rag.demo.defaults import MODEL, fitting_dtype, handbook_folder, model_folder
from cachecraft_rag.demo.retrieval import SentenceEmbedder

SPLITTER = RecursiveCharacterTextSplitter(chunk_size=1000, chunk_overlap=0)


def open_llm() -> ChatCachecraft:
    """With the model that is the script's argument, or in CACHECRAFT_MODEL, or else that of the demonstration."""
    model = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("CACHECRAFT_MODEL", MODEL)
    options = {"dtype": fitting_dtype("auto"), "max_model_len": 4096}
    return ChatCachecraft(model=model_folder(model), engine_options=options, max_tokens=40)


def handbook(pattern: str = "0*.md") -> list[Document]:
    """Some documents of the handbook in `examples/handbook`, whole."""
    paths = sorted(handbook_folder().glob(pattern))
    return [Document(path.read_text(encoding="utf-8"), metadata={"source": str(path)}) for path in paths]


class MiniLM(Embeddings):
    """The embedding model of the demonstration."""

    def __init__(self) -> None:
        self._embedder = SentenceEmbedder()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        rows: list[list[float]] = self._embedder.encode(texts).tolist()
        return rows

    def embed_query(self, text: str) -> list[float]:
        return self.embed_documents([text])[0]
