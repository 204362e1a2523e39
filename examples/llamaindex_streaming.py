"""Answers as they are made, for threads and for tasks, and one that is given up on.

python examples/llamaindex_streaming.py [MODEL]
"""

import asyncio

from llama_index.core import VectorStoreIndex
from llama_index.llms.cachecraft import AssignChunkIds, PrewarmChunks, get_chunk_synthesizer
from llamaindex_setup import SPLITTER, MiniLM, handbook, open_llm


def main() -> None:
    nodes = AssignChunkIds()(SPLITTER(handbook()))
    index = VectorStoreIndex(nodes, embed_model=MiniLM())
    with open_llm() as llm:
        PrewarmChunks(llm)(nodes)
        synthesizer = get_chunk_synthesizer(llm, streaming=True)
        query_engine = index.as_query_engine(llm=llm, response_synthesizer=synthesizer, similarity_top_k=4)

        response = query_engine.query("How long does a BP-24 pack last?")
        for delta in response.response_gen:
            print(delta, end="", flush=True)
        print("\n", response.metadata["cachecraft"]["reports"][0], sep="\n")

        asyncio.run(in_tasks(query_engine))

        given_up = query_engine.query("Tell me all about the hull.").response_gen
        print("\ngiven up after", repr(next(given_up) + next(given_up)))
        given_up.close()  # ends the request in the engine


async def in_tasks(query_engine) -> None:
    async def ask(question: str) -> str:
        response = await query_engine.aquery(question)
        return "".join([delta async for delta in response.async_response_gen()])

    for answer in await asyncio.gather(ask("What is the hull made of?"), ask("How heavy is the battery pack?")):
        print("-", answer)


if __name__ == "__main__":  # the engine is a process of its own
    main()
