"""A graph of LangGraph: the model writes a query, a retriever tool runs, and what it finds is answered from as chunks.

    python examples/langchain_agent.py [MODEL]

The first call is asked for ("any"), since small models seldom call a tool of themselves; larger ones do with "auto".
"""

from langchain_cachecraft import ChunkRetriever, assign_chunk_ids, prewarm
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import create_retriever_tool
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_setup import SPLITTER, MiniLM, handbook, open_llm
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from cachecraft_rag import RequestReport


def main() -> None:
    pieces = assign_chunk_ids(SPLITTER.split_documents(handbook()))
    store = InMemoryVectorStore(MiniLM())
    store.add_documents(pieces)
    with open_llm() as llm:
        print(prewarm(pieces, llm, progress=False))
        retriever = ChunkRetriever(retriever=store.as_retriever(search_kwargs={"k": 3}), llm=llm)
        tool = create_retriever_tool(
            retriever, "search", "Searches the handbook.", response_format="content_and_artifact"
        )

        def ask(state: MessagesState) -> dict[str, list[AIMessage]]:
            return {"messages": [llm.bind_tools([tool], tool_choice="any").invoke(state["messages"])]}

        def answer(state: MessagesState) -> dict[str, list[AIMessage]]:
            return {"messages": [llm.bind_tools([tool], tool_choice="none").invoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_sequence([("ask", ask), ("search", ToolNode([tool])), ("answer", answer)])
        graph.add_edge(START, "ask")
        question = HumanMessage("Search for: battery pack")
        *_, asked, found, answered = graph.compile().invoke({"messages": [question]})["messages"]
        print(f"searched for {asked.tool_calls[0]['args']}, found {len(found.artifact)} chunks\n{answered.text}\n")
        print(RequestReport.from_dict(answered.response_metadata["cachecraft"]))


if __name__ == "__main__":  # the engine is a process of its own
    main()
