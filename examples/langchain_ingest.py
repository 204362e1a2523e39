"""Documents into Qdrant and their caches into the engine, in one call that may be repeated.

python examples/langchain_ingest.py [MODEL]
"""

import tempfile
from pathlib import Path

from langchain_cachecraft import ChunkIngestor, ChunkPromptTemplate, ChunkRetriever
from langchain_qdrant import QdrantVectorStore
from langchain_setup import SPLITTER, MiniLM, handbook, open_llm
from qdrant_client import QdrantClient, models

PROMPT = ChunkPromptTemplate.from_template("{context}\n\nAnswer in one sentence: {input}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open_llm() as llm:
        client = QdrantClient(path=str(Path(folder) / "qdrant"))
        size = models.VectorParams(size=384, distance=models.Distance.COSINE)
        client.create_collection("handbook", vectors_config=size)
        store = QdrantVectorStore(client, "handbook", MiniLM())
        ingestor = ChunkIngestor(store, llm, splitter=SPLITTER, state=Path(folder) / "state.json")
        documents = handbook()
        print("all:", ingestor.ingest(documents, progress=False))
        print("again:", ingestor.ingest(documents, progress=False))
        print("one is gone:", ingestor.ingest(documents[1:], cleanup="full", progress=False))
        retriever = ChunkRetriever(retriever=store.as_retriever(search_kwargs={"k": 3}), llm=llm)
        question = "How long does a BP-24 pack last?"
        answer = llm.invoke(PROMPT.invoke({"context": retriever.invoke(question), "input": question}))
        print(answer.text)
        print(answer.response_metadata["cachecraft"]["totals"])
        client.close()


if __name__ == "__main__":  # the engine is a process of its own
    main()
