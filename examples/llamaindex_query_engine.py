"""A query engine over Qdrant: the LLM and the synthesizer are ours, the rest is as always.

python examples/llamaindex_query_engine.py [MODEL]
"""

from llama_index.core import StorageContext, VectorStoreIndex
from llama_index.llms.cachecraft import AssignChunkIds, PrewarmChunks, get_chunk_synthesizer
from llama_index.vector_stores.qdrant import QdrantVectorStore
from llamaindex_setup import SPLITTER, MiniLM, handbook, open_llm
from qdrant_client import QdrantClient


def main() -> None:
    nodes = AssignChunkIds()(SPLITTER(handbook()))
    client = QdrantClient(":memory:")
    storage = StorageContext.from_defaults(vector_store=QdrantVectorStore("handbook", client=client))
    index = VectorStoreIndex(nodes, storage_context=storage, embed_model=MiniLM())
    with open_llm() as llm:
        PrewarmChunks(llm)(nodes)
        query_engine = index.as_query_engine(
            llm=llm, response_synthesizer=get_chunk_synthesizer(llm), similarity_top_k=4
        )
        for question in ("How long does a BP-24 pack last?", "What is the hull made of?"):
            response = query_engine.query(question)
            print(f"\n{question}\n{response}\n")
            [report] = response.metadata["cachecraft"]["reports"]
            print(report)
            print("sources:", sorted({node.metadata["file_name"] for node in response.source_nodes}))
    client.close()


if __name__ == "__main__":  # the engine is a process of its own
    main()
