"""`create_retrieval_chain` over chunks, its answer streamed.

python examples/langchain_retrieval_chain.py [MODEL]
"""

from langchain_cachecraft import ChunkPromptTemplate, ChunkRetriever, assign_chunk_ids, prewarm
from langchain_classic.chains import create_retrieval_chain
from langchain_core.output_parsers import StrOutputParser
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_setup import SPLITTER, MiniLM, handbook, open_llm

PROMPT = ChunkPromptTemplate.from_template("{context}\n\nAnswer in one sentence: {input}")


def main() -> None:
    pieces = assign_chunk_ids(SPLITTER.split_documents(handbook()))
    store = InMemoryVectorStore(MiniLM())
    store.add_documents(pieces)
    with open_llm() as llm:
        print(prewarm(pieces, llm, progress=False))
        retriever = ChunkRetriever(retriever=store.as_retriever(search_kwargs={"k": 4}), llm=llm)
        chain = create_retrieval_chain(retriever, PROMPT | llm | StrOutputParser())
        for piece in chain.stream({"input": "How is the battery charged?"}):
            for document in piece.get("context", []):
                print(f"found {document.metadata['chunk_id'][:8]} in {document.metadata['source'].rsplit('/')[-1]}")
            print(piece.get("answer", ""), end="", flush=True)
        print()


if __name__ == "__main__":  # the engine is a process of its own
    main()
