"""One ingestion of a folder in a process of its own: prints what was done as JSON.

python ingest_once.py FOLDER WORK [full]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from langchain_cachecraft import ChunkIngestor
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_qdrant import QdrantVectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter
from qdrant_client import QdrantClient, models

from cachecraft_rag.testing import FakeEngine


def main(folder: Path, work: Path, full: bool) -> None:
    client = QdrantClient(path=str(work / "qdrant"))
    if not client.collection_exists("c"):
        client.create_collection("c", vectors_config=models.VectorParams(size=8, distance=models.Distance.COSINE))
    engine = FakeEngine()
    ingestor = ChunkIngestor(
        QdrantVectorStore(client, "c", DeterministicFakeEmbedding(size=8)),
        engine,
        splitter=RecursiveCharacterTextSplitter(chunk_size=40, chunk_overlap=0),
        state=work / "state.json",
    )
    documents = [
        Document(path.read_text(), metadata={"source": str(path), "modified": path.stat().st_mtime})
        for path in sorted(folder.glob("*.md"))
    ]
    report = ingestor.ingest(documents, cleanup="full" if full else "incremental", progress=False)
    again = ingestor.ingest(documents, cleanup="full" if full else "incremental", progress=False)
    points = client.scroll("c", limit=1000)[0]
    print(
        json.dumps(
            {
                "added": len(report.added),
                "skipped": report.skipped,
                "removed": len(report.removed),
                "stored": sorted(report.prewarm.stored) if report.prewarm else [],
                "stored_again": again.prewarm.stored if again.prewarm else [],
                "added_again": again.added,
                "points": sorted(str(point.id) for point in points),
                "chunks": sorted(point.payload["metadata"]["chunk_id"] for point in points if point.payload),
            }
        )
    )
    client.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), "full" in sys.argv[3:])
