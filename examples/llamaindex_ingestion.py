"""An ingestion pipeline that prewarms: repeated, it does only what is new, and deletion reaches the caches.

python examples/llamaindex_ingestion.py [MODEL]
"""

from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.llms.cachecraft import AssignChunkIds, PrewarmChunks, delete_ref_doc
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llamaindex_setup import SPLITTER, MiniLM, handbook, open_llm
from qdrant_client import QdrantClient


def main() -> None:
    client = QdrantClient(":memory:")
    with open_llm() as llm:
        prewarm = PrewarmChunks(llm)
        pipeline = IngestionPipeline(
            transformations=[SPLITTER, AssignChunkIds(), MiniLM(), prewarm],
            vector_store=QdrantVectorStore("handbook", client=client),
            docstore=SimpleDocumentStore(),
            docstore_strategy=DocstoreStrategy.UPSERTS,
        )
        documents = handbook("0[1-4]*.md")
        nodes = pipeline.run(documents=documents)
        print(f"first: {len(nodes)} nodes, {client.count('handbook').count} points; {prewarm.report}")

        nodes = pipeline.run(documents=documents)  # the docstore knows them
        print(f"again: {len(nodes)} nodes, {client.count('handbook').count} points")

        gone = delete_ref_doc(documents[0].id_, llm, pipeline=pipeline)
        print(f"deleted: {len(gone)} chunks left the engine, {client.count('handbook').count} points stay")

        nodes = pipeline.run(documents=documents)
        print(f"back: {len(nodes)} nodes, {client.count('handbook').count} points; {prewarm.report}")
    client.close()


if __name__ == "__main__":  # the engine is a process of its own
    main()
