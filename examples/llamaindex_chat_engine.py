"""A chat engine that puts its nodes into one string: `recover_chunks` finds them again.

python examples/llamaindex_chat_engine.py [MODEL]
"""

from llama_index.core import Settings, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager, CBEventType, EventPayload, LlamaDebugHandler
from llama_index.llms.cachecraft import AssignChunkIds, ChunkIdPostprocessor, PrewarmChunks
from llamaindex_setup import SPLITTER, MiniLM, handbook, open_llm

# Every chunk must be followed by a blank line, the last one too.
CONTEXT = "Use the context below.\n\n{context_str}\n\nAnswer in one sentence."


def main() -> None:
    nodes = AssignChunkIds()(SPLITTER(handbook()))
    debug = LlamaDebugHandler(print_trace_on_end=False)
    Settings.callback_manager = CallbackManager([debug])
    index = VectorStoreIndex(nodes, embed_model=MiniLM())
    with open_llm(recover_chunks=True) as llm:
        PrewarmChunks(llm)(nodes)
        chat = index.as_chat_engine(
            chat_mode="context",
            llm=llm,
            similarity_top_k=3,
            context_template=CONTEXT,
            node_postprocessors=[ChunkIdPostprocessor(llm=llm)],
        )
        for question in ("How long does a BP-24 pack last?", "And what does a new one cost?"):
            print(f"\n{question}\n{chat.chat(question)}\n")
            answered = debug.get_event_pairs(CBEventType.LLM)[-1][1].payload[EventPayload.RESPONSE]
            print(answered.additional_kwargs["report"])


if __name__ == "__main__":  # the engine is a process of its own
    main()
