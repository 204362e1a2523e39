"""Prompts as a retriever might make them, drawn from a user's chunks."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Sample:
    """`chunks` in the order of the prompt; `own`: the one that the question is about; it may be yet to be asked."""

    chunks: tuple[Chunk, ...]
    own: Chunk
    question: str | None = None


def draw_samples(
    chunks: Sequence[Chunk], questions: Sequence[str], *, count: int, chunks_each: int, seed: int = 0
) -> list[Sample]:
    """At most `count` samples, each of one chunk among others drawn at random, in a random order.

    `questions`: what is asked, each about the chunk that shares the rarest words with it; without any, chunks are
    drawn. Raises `InvalidInput` where there are fewer than two chunks: nothing could stand behind anything else.
    """
    different = list({chunk.id: chunk for chunk in chunks}.values())
    if len(different) < 2:
        raise InvalidInput(f"{len(different)} chunk is not enough: give documents of at least two chunks")
    rng = random.Random(seed)
    if questions:
        asked = rng.sample(questions, min(count, len(questions)))
        owns = [(different[index], question) for question, index in zip(asked, match(asked, different), strict=True)]
        return [_sample(rng, different, own, chunks_each, question) for own, question in owns]
    order = rng.sample(different, len(different))
    return [_sample(rng, different, order[number % len(order)], chunks_each) for number in range(count)]


def match(questions: Sequence[str], chunks: Sequence[Chunk]) -> list[int]:
    """For each question the index of the chunk with the largest sum of log inverse frequencies of shared words."""
    words = [_words(chunk.text) for chunk in chunks]
    frequency = Counter(word for own in words for word in own)
    weight = {word: math.log(1 + len(chunks) / count) for word, count in frequency.items()}
    found = []
    for question in questions:
        asked = _words(question)
        scores = [sum(weight[word] for word in sorted(asked & own)) for own in words]
        found.append(max(range(len(chunks)), key=scores.__getitem__))
    return found


def _sample(
    rng: random.Random, chunks: Sequence[Chunk], own: Chunk, chunks_each: int, question: str | None = None
) -> Sample:
    others = [chunk for chunk in chunks if chunk.id != own.id]
    placed = [own, *rng.sample(others, min(chunks_each - 1, len(others)))]
    rng.shuffle(placed)
    return Sample(tuple(placed), own, question)


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.casefold()))
