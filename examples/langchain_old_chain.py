"""An old chain that makes one string of its documents: the chunks are found again in the flat prompt.

python examples/langchain_old_chain.py [MODEL]
"""

from langchain_cachecraft import ChunkRetriever, assign_chunk_ids, prewarm
from langchain_classic.chains import create_retrieval_chain
from langchain_classic.chains.combine_documents import create_stuff_documents_chain
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_setup import SPLITTER, MiniLM, handbook, open_llm

from cachecraft_rag import RequestReport

PROMPT = ChatPromptTemplate.from_template("{context}\n\nAnswer in one sentence: {input}")


class PrintReport(BaseCallbackHandler):
    """The chain returns text only; the report is in the message."""

    def on_llm_end(self, response: LLMResult, **_: object) -> None:
        print(RequestReport.from_dict(response.generations[0][0].message.response_metadata["cachecraft"]))


def main() -> None:
    pieces = assign_chunk_ids(SPLITTER.split_documents(handbook()))
    store = InMemoryVectorStore(MiniLM())
    store.add_documents(pieces)
    with open_llm() as opened:
        llm = opened.model_copy(update={"recover_chunks": True})
        print(prewarm(pieces, llm, progress=False))
        retriever = ChunkRetriever(retriever=store.as_retriever(search_kwargs={"k": 4}), llm=llm)
        chain = create_retrieval_chain(retriever, create_stuff_documents_chain(llm, PROMPT))
        result = chain.invoke({"input": "What does the core module hold?"}, {"callbacks": [PrintReport()]})
        print(result["answer"])


if __name__ == "__main__":  # the engine is a process of its own
    main()
