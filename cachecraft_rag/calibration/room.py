"""How long a context calibrating needs, found out before an engine is started."""

from __future__ import annotations

from collections.abc import Sequence

from cachecraft_rag.bench.quality.room import context_length
from cachecraft_rag.calibration.questions import MOST_TOKENS, opening_question, question_prompt
from cachecraft_rag.calibration.samples import Sample
from cachecraft_rag.config import EngineConfig
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.tokenise import PromptTokenizer


def context_for(config: EngineConfig, samples: Sequence[Sample], max_tokens: int) -> int:
    """`max_model_len` for all samples, their answers and their chunks; see `context_length`."""
    tokenizer = PromptTokenizer.of_engine(config)
    chunks = [chunk for sample in samples for chunk in sample.chunks]
    way_out = "give fewer --chunks, or split the documents into smaller ones"
    return context_length(config, tokenizer, _longest_prompt(tokenizer, samples, max_tokens), chunks, way_out=way_out)


def _longest_prompt(tokenizer: PromptTokenizer, samples: Sequence[Sample], max_tokens: int) -> int:
    """Tokens of the longest prompt and its answer, where the question is yet to be asked with room for any."""

    def count(prompt: ChunkPrompt) -> int:
        return len(tokenizer.encode(prompt).token_ids)

    given = [count(ChunkPrompt.chat(s.chunks, s.question)) + max_tokens for s in samples if s.question is not None]
    silent = [sample for sample in samples if sample.question is None]
    answered = [count(ChunkPrompt.chat(s.chunks, opening_question(s.own))) + MOST_TOKENS + max_tokens for s in silent]
    asking = [count(question_prompt(sample.own)) + MOST_TOKENS for sample in silent]
    return max([*given, *answered, *asking])
