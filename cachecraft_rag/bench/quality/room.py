"""How long a context a measurement needs, found out before an engine is started."""

from __future__ import annotations

from collections.abc import Iterable

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.config import EngineConfig
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.stand_in import LARGEST_SHARE, ROOMY_CONTEXT, stand_in_token_ids
from cachecraft_rag.tokenise import PromptTokenizer


def context_length(
    config: EngineConfig, tokenizer: PromptTokenizer, prompt: int, chunks: Iterable[Chunk], *, way_out: str
) -> int:
    """`max_model_len` for prompts and answers of up to `prompt` tokens and for `chunks`; `config`'s where it names one.

    At most the model's own, and as long as all stand-in passages need where that allows it, as engines are that name
    none. Raises `InvalidInput` where `prompt` does not fit, with the `way_out`, or the longest chunk behind head and
    stand-in passages.
    """
    chunk = max(len(tokenizer.encode_chunk(chunk)) for chunk in chunks)
    head = len(tokenizer.head_token_ids)
    length = config.max_model_len
    if length is None:
        passages = len(stand_in_token_ids(config.stand_in, tokenizer, None))
        wanted = max(ROOMY_CONTEXT, LARGEST_SHARE * passages, prompt, _prewarmed(head + passages, chunk))
        length = min(wanted, _model_context(config.model))
    if prompt > length:
        raise InvalidInput(
            f"prompts take up to {prompt} tokens with their answers but the model's context holds {length}: {way_out}"
        )
    in_front = head + len(stand_in_token_ids(config.stand_in, tokenizer, length))
    if _prewarmed(in_front, chunk) > length:
        raise InvalidInput(
            f"the longest chunk has {chunk} tokens, and {in_front} of head and stand-in passages come before it, but "
            f"the model's context holds {length}: give smaller chunks, or --no-stand-in"
        )
    return length


def _prewarmed(in_front: int, chunk: int) -> int:
    """A prewarm has one token behind the chunk, and vLLM wants room for one more."""
    return in_front + chunk + 2


def _model_context(model: str) -> int:
    from transformers import AutoConfig

    return int(AutoConfig.from_pretrained(model).get_text_config().max_position_embeddings)
