"""Prompts as a retriever might make them, drawn from a user's chunks."""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput

LEAST = 8  # samples; an interval over fewer says nothing
_TRIES = 20  # draws for each sample that is wanted, until one differs from all before it

# Thai, Lao, Burmese, Khmer, kana and Chinese characters are written without spaces.
_UNSPACED = (
    "\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|[^\W{_UNSPACED}]+")


@dataclass(frozen=True, slots=True)
class Sample:
    """`chunks` in the order of the prompt; `own`: the one that the question is about; it may be yet to be asked."""

    chunks: tuple[Chunk, ...]
    own: Chunk
    question: str | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """No two samples have the same question and the same chunks in the same order.

    `skipped`: questions that were passed over since they share no word with any chunk.
    """

    samples: tuple[Sample, ...]
    skipped: int = 0


def draw_samples(
    chunks: Sequence[Chunk], questions: Sequence[str], *, count: int, chunks_each: int, seed: int = 0
) -> Drawn:
    """At most `count` different samples, each of one chunk among others drawn at random, in a random order.

    `questions`: what is asked, each once, about the chunk that shares the rarest words with it; without any, chunks are
    drawn. Raises `InvalidInput` where there are fewer than two chunks, since nothing could stand behind anything
    else, and where fewer than `LEAST` different samples can be made.
    """
    different = list({chunk.id: chunk for chunk in chunks}.values())
    if len(different) < 2:
        raise InvalidInput(f"{len(different)} chunk is not enough: give documents of at least two chunks")
    rng = random.Random(seed)
    if questions:
        return _about(rng, different, list(dict.fromkeys(questions)), count, chunks_each)
    order = rng.sample(different, len(different))
    found: dict[tuple[Chunk, ...], Sample] = {}
    for number in range(_TRIES * count):
        sample = _sample(rng, different, order[number % len(order)], chunks_each)
        found.setdefault(sample.chunks, sample)
        if len(found) == count:
            break
    if len(found) < LEAST:
        raise InvalidInput(
            f"{len(different)} different chunks make {len(found)} different samples, too few for an interval: give "
            f"more documents, for at least {LEAST}"
        )
    return Drawn(tuple(found.values()))


def match(questions: Sequence[str], chunks: Sequence[Chunk]) -> Iterator[int | None]:
    """For each question the index of the chunk with the largest sum of log inverse frequencies of shared words.

    None where no word is shared with any. In scripts without spaces each two neighbouring characters are a word.
    """
    words = [_words(chunk.text) for chunk in chunks]
    frequency = Counter(word for own in words for word in own)
    weight = {word: math.log(1 + len(chunks) / count) for word, count in frequency.items()}
    for question in questions:
        asked = _words(question)
        scores = [sum(weight[word] for word in sorted(asked & own)) for own in words]
        best = max(range(len(chunks)), key=scores.__getitem__)
        yield best if scores[best] > 0 else None


def _about(
    rng: random.Random, chunks: Sequence[Chunk], questions: Sequence[str], count: int, chunks_each: int
) -> Drawn:
    order = rng.sample(questions, len(questions))
    samples: list[Sample] = []
    skipped: list[str] = []
    for question, index in zip(order, match(order, chunks), strict=True):
        if index is None:
            skipped.append(question)
            continue
        samples.append(_sample(rng, chunks, chunks[index], chunks_each, question))
        if len(samples) == count:
            break
    if len(samples) < LEAST:
        unlike = f" ({len(skipped)} share no word with any chunk, such as {skipped[0]!r:.80})" if skipped else ""
        raise InvalidInput(
            f"the number of different questions about these documents is {len(samples)}{unlike}, too few for an "
            f"interval: give at least {LEAST}, or none and the model writes them"
        )
    return Drawn(tuple(samples), len(skipped))


def _sample(
    rng: random.Random, chunks: Sequence[Chunk], own: Chunk, chunks_each: int, question: str | None = None
) -> Sample:
    others = [chunk for chunk in chunks if chunk.id != own.id]
    placed = [own, *rng.sample(others, min(chunks_each - 1, len(others)))]
    rng.shuffle(placed)
    return Sample(tuple(placed), own, question)


def _words(text: str) -> frozenset[str]:
    words: set[str] = set()
    for found in _WORD.finditer(text.casefold()):
        word = found.group()
        if found.lastgroup == "unspaced" and len(word) > 1:
            words.update(word[first : first + 2] for first in range(len(word) - 1))
        else:
            words.add(word)
    return frozenset(words)
