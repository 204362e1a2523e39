"""An LCEL chain: the prompt class and the chat model are ours, the rest is as always.

python examples/langchain_lcel.py [MODEL]
"""

from langchain_cachecraft import ChunkPromptTemplate, ChunkRetriever, assign_chunk_ids, prewarm
from langchain_core.runnables import RunnablePassthrough
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_setup import SPLITTER, MiniLM, handbook, open_llm

from cachecraft_rag import RequestReport

PROMPT = ChunkPromptTemplate.from_messages(
    [
        ("system", "Answer from the handbook, in one sentence."),
        ("human", "{context}\n\nQuestion: {question}"),
    ]
)


def main() -> None:
    pieces = assign_chunk_ids(SPLITTER.split_documents(handbook()))
    store = InMemoryVectorStore(MiniLM())
    store.add_documents(pieces)
    with open_llm() as llm:
        print(prewarm(pieces, llm, progress=False))
        retriever = ChunkRetriever(retriever=store.as_retriever(search_kwargs={"k": 4}), llm=llm)
        chain = {"context": retriever, "question": RunnablePassthrough()} | PROMPT | llm
        for question in ("How long does a BP-24 pack last?", "What is the hull made of?"):
            answer = chain.invoke(question)
            print(f"\n{question}\n{answer.text}\n")
            print(RequestReport.from_dict(answer.response_metadata["cachecraft"]))


if __name__ == "__main__":  # the engine is a process of its own
    main()
