"""Data sets for the benchmark, built from the files of public ones."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cachecraft_rag.bench.quality.data import Passage, Question
from cachecraft_rag.errors import InvalidInput

PASSAGES = 10
QUESTIONS_PER_ARTICLE = 5


def xquad_articles(folder: Path, seed: int = 0) -> list[Question]:
    """XQuAD: the five passages of the question's article and, to distract, those of another one.

    Articles come in an order drawn with `seed`, five drawn questions of each behind one another. Needs
    `xquad_passages.jsonl` (id, article, text) and `xquad_questions.jsonl` (question, answers, passage: an id).
    """
    rng = random.Random(seed)
    articles: dict[str, list[Passage]] = defaultdict(list)
    article_of: dict[str, str] = {}
    for row in _rows(folder / "xquad_passages.jsonl"):
        articles[row["article"]].append(Passage("", row["text"]))
        article_of[row["id"]] = row["article"]
    asked: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _rows(folder / "xquad_questions.jsonl"):
        asked[article_of[row["passage"]]].append(row)
    order = rng.sample(sorted(asked), len(asked))
    questions = []
    for article, other in zip(order, [*order[1:], order[0]], strict=True):
        passages = tuple(articles[article] + articles[other])
        chosen = rng.sample(asked[article], min(QUESTIONS_PER_ARTICLE, len(asked[article])))
        questions += [Question(row["question"], tuple(row["answers"]), passages) for row in chosen]
    return questions


def two_wiki(folder: Path) -> list[Question]:
    """2WikiMultihopQA, `2wiki_dev164.jsonl`: the ten passages of each question."""
    return _multi_hop(folder / "2wiki_dev164.jsonl")


def musique(folder: Path) -> list[Question]:
    """MuSiQue, `musique_dev200.jsonl`: of the twenty passages the supporting ones, filled up to ten with the first."""
    return _multi_hop(folder / "musique_dev200.jsonl")


SOURCES: Mapping[str, Callable[[Path], list[Question]]] = {
    "xquad": xquad_articles,
    "2wiki": two_wiki,
    "musique": musique,
}


def build(name: str, folder: Path) -> list[Question]:
    """The questions of a data set; `InvalidInput` names the known ones, or the file that is not there."""
    if name not in SOURCES:
        raise InvalidInput(f"unknown data set {name!r}; choose one of: {', '.join(SOURCES)}")
    return SOURCES[name](folder)


def _multi_hop(path: Path) -> list[Question]:
    questions = []
    for row in _rows(path):
        supporting = list(row["supporting"])
        others = [index for index in range(len(row["passages"])) if index not in supporting]
        chosen = [row["passages"][index] for index in [*supporting, *others][:PASSAGES]]
        passages = tuple(Passage(passage["title"], passage["text"]) for passage in chosen)
        questions.append(Question(row["question"], tuple(row["answers"]), passages))
    return questions


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}); give the folder that holds it") from error
