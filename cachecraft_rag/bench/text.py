"""Passages of an exact number of tokens, for measurements where the words do not matter."""

from __future__ import annotations

import random

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.tokenise import PromptTokenizer

_WORDS = (
    *("river", "stone", "lamp", "garden", "window", "copper", "letter", "morning", "harbour", "engine", "paper"),
    *("silver", "mountain", "voice", "bridge", "table", "winter", "signal", "market", "orange", "number", "shadow"),
    *("kettle", "forest", "circle", "train", "pocket", "island", "doctor", "velvet", "candle"),
)


def chunk_of(tokenizer: PromptTokenizer, tokens: int, seed: int) -> Chunk:
    """A chunk of exactly `tokens` tokens, its joiner counted."""
    rng = random.Random(seed)
    words: list[str] = []
    for _ in range(4 * tokens):
        candidate = Chunk(" ".join([*words, rng.choice(_WORDS)]))
        length = tokenizer.count(candidate.text + tokenizer.joiner)
        if length == tokens:
            return candidate
        if length < tokens:
            words = candidate.text.split(" ")
    raise InvalidInput(f"no text of exactly {tokens} tokens was found for this tokenizer; try another chunk size")
