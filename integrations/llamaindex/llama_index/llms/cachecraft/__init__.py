"""LlamaIndex over cachecraft_rag: the KV cache of retrieved chunks is reused at any position of the prompt."""

from llama_index.llms.cachecraft.deletion import adelete_ref_doc, delete_ref_doc
from llama_index.llms.cachecraft.ingestion import AssignChunkIds, PrewarmChunks
from llama_index.llms.cachecraft.llm import Cachecraft
from llama_index.llms.cachecraft.postprocessor import ChunkIdPostprocessor
from llama_index.llms.cachecraft.synthesizer import ChunkSynthesizer, get_chunk_synthesizer

__all__ = [
    "AssignChunkIds",
    "Cachecraft",
    "ChunkIdPostprocessor",
    "ChunkSynthesizer",
    "PrewarmChunks",
    "adelete_ref_doc",
    "delete_ref_doc",
    "get_chunk_synthesizer",
]
