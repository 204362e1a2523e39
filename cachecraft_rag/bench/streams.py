"""Streams of questions, each as the chunks that it needs: made up, or retrieved from files."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cachecraft_rag.errors import InvalidInput

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Stream:
    """`sizes`: of every chunk, in any unit; `questions`: the chunks of each, in prompt order."""

    name: str
    sizes: tuple[int, ...]
    questions: tuple[tuple[int, ...], ...]


def skewed(questions: int, chunks: int, k: int, *, drift: bool, seed: int = 7) -> Stream:
    """Popularity follows Zipf's law; with `drift` other chunks are popular in each third of the stream."""
    rng = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, chunks + 1)
    weights /= weights.sum()
    sizes = rng.integers(100, 400, chunks)
    popular = np.arange(chunks)
    drawn = []
    for number in range(questions):
        if drift and number % (questions // 3 + 1) == 0:
            popular = rng.permutation(chunks)
        drawn.append(tuple(int(popular[rank]) for rank in rng.choice(chunks, k, replace=False, p=weights)))
    name = "Zipf, popularity drifts" if drift else "Zipf"
    return Stream(name, tuple(int(size) for size in sizes), tuple(drawn))


def retrieved(passages: Path, questions: Path, k: int, *, shuffled: bool, seed: int = 7) -> Stream:
    """The `k` best passages of each question by BM25, best first. Sizes are words.

    Files of JSON lines: passages with `text`, questions with `question`.
    """
    texts = [_words(text) for text in _read(passages, "text")]
    asked = [_words(text) for text in _read(questions, "question")]
    if shuffled:
        random.Random(seed).shuffle(asked)
    name = f"{questions.stem}, {'shuffled' if shuffled else 'in order'}"
    return Stream(name, tuple(len(words) for words in texts), tuple(_best(texts, asked, k)))


def _best(texts: Sequence[list[str]], asked: Sequence[list[str]], k: int) -> Iterator[tuple[int, ...]]:
    counts = [Counter(words) for words in texts]
    documents = Counter(word for count in counts for word in count)
    mean = sum(map(len, texts)) / len(texts)
    norms = [1.5 * (0.25 + 0.75 * len(words) / mean) for words in texts]
    for words in asked:
        scores = [0.0] * len(texts)
        for word in set(words) & documents.keys():
            weight = math.log(1 + (len(texts) - documents[word] + 0.5) / (documents[word] + 0.5))
            for number, count in enumerate(counts):
                if frequency := count[word]:
                    scores[number] += weight * 2.5 * frequency / (frequency + norms[number])
        yield tuple(sorted(range(len(texts)), key=lambda number: -scores[number])[:k])


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _read(path: Path, field: str) -> list[str]:
    try:
        return [str(json.loads(line)[field]) for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}; give a file of JSON lines") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} holds a line without {field!r} ({error!r}); each must be a JSON object") from error
