"""How much of the context an answer had the model run."""

from __future__ import annotations

from cachecraft_rag.answer import Answer
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.errors import CachecraftError
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.report import Outcome


def context_share(engine: ChunkEngine, prompt: ChunkPrompt, answer: Answer) -> float:
    """Rows that the model ran beyond one for each token of the question, over the tokens in front of the question.

    A full prefill has 1, naive reuse 0; what a policy runs to make its choice counts.
    """
    encoded = engine.tokenizer.encode(prompt)
    if not encoded.chunks:
        return 0.0
    context = encoded.chunks[-1].stop
    asked = len(encoded.token_ids) - context
    report = answer.report
    if report is None:
        computed = float(answer.prompt_tokens - answer.prefix_cache_tokens)
    else:
        computed = report.computed_tokens + report.selection_tokens
    return max(0.0, computed - asked) / context


def check_reused(engine: ChunkEngine, answer: Answer) -> None:
    """Raise where a chunk that could be stored was not reused."""
    for chunk in answer.report.chunks if answer.report is not None else ():
        if chunk.outcome is not Outcome.HIT and chunk.tokens >= engine.config.min_chunk_tokens:
            raise CachecraftError(
                f"chunk {chunk.chunk_id} was not reused ({chunk.reason}), so that the comparison would be void; "
                "give the store more memory with CACHECRAFT_CPU_STORE_GB"
            )
