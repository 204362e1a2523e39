"""Finding the chunks for a question: sentence-transformers and a local Qdrant."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cachecraft_rag.chunk import Chunk, point_id
from cachecraft_rag.closing import Closing
from cachecraft_rag.errors import CachecraftError, InvalidInput

COLLECTION = "chunks"
MEMORY = ":memory:"
_BATCH = 32


class Embedder(Protocol):
    def encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        """One row per text, shape [texts, dimensions]."""
        ...


class SentenceEmbedder:
    """A sentence-transformers model from a folder; by default the small one that the `demo` extra brings."""

    def __init__(self, folder: str | Path | None = None) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise CachecraftError(_missing("sentence-transformers", error)) from error
        from transformers.utils import logging

        from cachecraft_rag.demo.models import embedding_model_path

        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        logging.disable_progress_bar()
        self._model: Any = SentenceTransformer(
            str(folder or embedding_model_path()), device="cpu", local_files_only=True
        )

    def encode(self, texts: list[str]) -> npt.NDArray[np.float32]:
        rows = self._model.encode(texts, batch_size=_BATCH, show_progress_bar=False, normalize_embeddings=True)
        return np.asarray(rows, dtype=np.float32)


class Retriever(Closing):
    """Chunks in a Qdrant collection, in memory or in a folder, which it locks until `close`."""

    def __init__(self, embedder: Embedder, path: str | Path = MEMORY) -> None:
        try:
            from qdrant_client import QdrantClient
        except ImportError as error:
            raise CachecraftError(_missing("qdrant-client", error)) from error
        self._embedder = embedder
        self._client: Any = QdrantClient(MEMORY) if str(path) == MEMORY else QdrantClient(path=str(path))

    def add(self, chunks: Sequence[Chunk], *, progress: bool = True) -> int:
        """Embed and keep the chunks that are not there yet; returns how many that were."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        by_point = {point_id(chunk.document_id or "", chunk.id): chunk for chunk in chunks}
        for point in self._present(list(by_point)):
            del by_point[point]
        waiting = list(by_point.items())
        columns = (TextColumn("embedding"), BarColumn(), MofNCompleteColumn(), TextColumn("chunks"))
        with Progress(*columns, TimeRemainingColumn(), transient=True, disable=not progress) as bar:
            task = bar.add_task("embedding", total=len(waiting))
            for first in range(0, len(waiting), _BATCH):
                batch = waiting[first : first + _BATCH]
                self._upsert(batch)
                bar.advance(task, len(batch))
        return len(waiting)

    def retrieve(self, question: str, k: int) -> list[Chunk]:
        """The `k` nearest chunks, the nearest first, each text once."""
        if k < 1:
            raise InvalidInput(f"k={k} is not allowed: ask for at least 1 chunk")
        if not self._client.collection_exists(COLLECTION):
            raise InvalidInput("nothing was added to this retriever yet: call add(chunks) first")
        vector = self._embedder.encode([question])[0].tolist()
        total = self._client.count(COLLECTION).count
        limit = k
        while True:  # one text may be there from several documents
            points = self._client.query_points(COLLECTION, query=vector, limit=limit, with_payload=True).points
            found: dict[str, dict[str, Any]] = {}
            for point in points:
                found.setdefault(point.payload["chunk_id"], point.payload)
            if len(found) >= k or limit >= total:
                break
            limit *= 2
        nearest = list(found.values())[:k]
        return [Chunk(payload["text"], payload["document_id"], payload["metadata"]) for payload in nearest]

    def close(self) -> None:
        self._client.close()

    def _present(self, points: list[str]) -> list[str]:
        if not points or not self._client.collection_exists(COLLECTION):
            return []
        records = self._client.retrieve(COLLECTION, ids=points, with_payload=False)
        return [str(record.id) for record in records]

    def _upsert(self, batch: Sequence[tuple[str, Chunk]]) -> None:
        from qdrant_client import models

        vectors = self._embedder.encode([chunk.text for _, chunk in batch])
        if not self._client.collection_exists(COLLECTION):
            size = int(vectors.shape[1])
            self._client.create_collection(
                COLLECTION, vectors_config=models.VectorParams(size=size, distance=models.Distance.COSINE)
            )
        self._client.upsert(
            COLLECTION,
            points=[
                models.PointStruct(id=point, vector=vector.tolist(), payload=_payload(chunk))
                for (point, chunk), vector in zip(batch, vectors, strict=True)
            ],
        )


def _payload(chunk: Chunk) -> dict[str, Any]:
    return {
        "chunk_id": chunk.id,
        "text": chunk.text,
        "document_id": chunk.document_id,
        "metadata": dict(chunk.metadata),
    }


def _missing(package: str, error: ImportError) -> str:
    return f"{package} cannot be imported ({error}): pip install 'cachecraft-rag[demo]'"
