"""Data sets for the benchmark, built from the files of public ones."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cachecraft_rag.bench.quality.data import Passage, Question, answers_of, passages_of, read_lines, text_of
from cachecraft_rag.errors import InvalidInput

T = TypeVar("T")
_XQUAD_PASSAGES, _XQUAD_QUESTIONS = "xquad_passages.jsonl", "xquad_questions.jsonl"
_TWO_WIKI, _MUSIQUE = "2wiki_dev164.jsonl", "musique_dev200.jsonl"
FILES = frozenset((_XQUAD_PASSAGES, _XQUAD_QUESTIONS, _TWO_WIKI, _MUSIQUE))  # that are read
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
    for passage, article, text in _parse(folder / _XQUAD_PASSAGES, _xquad_passage, "id, article and text"):
        articles[article].append(Passage("", text))
        article_of[passage] = article
    asked: dict[str, list[tuple[str, tuple[str, ...]]]] = defaultdict(list)
    parse = partial(_xquad_question, article_of=article_of)
    for article, question, answers in _parse(
        folder / _XQUAD_QUESTIONS, parse, "question, answers (a list) and passage (its id)"
    ):
        asked[article].append((question, answers))
    order = rng.sample(sorted(asked), len(asked))
    questions = []
    for article, other in zip(order, [*order[1:], order[0]], strict=True):
        passages = tuple(articles[article] + articles[other])
        chosen = rng.sample(asked[article], min(QUESTIONS_PER_ARTICLE, len(asked[article])))
        questions += [Question(question, answers, passages) for question, answers in chosen]
    return questions


def two_wiki(folder: Path) -> list[Question]:
    """2WikiMultihopQA, `2wiki_dev164.jsonl`: the ten passages of each question."""
    return _multi_hop(folder / _TWO_WIKI)


def musique(folder: Path) -> list[Question]:
    """MuSiQue, `musique_dev200.jsonl`: of the twenty passages the supporting ones, filled up to ten with the first."""
    return _multi_hop(folder / _MUSIQUE)


SOURCES: Mapping[str, Callable[[Path], list[Question]]] = {
    "xquad": xquad_articles,
    "2wiki": two_wiki,
    "musique": musique,
}


def build(name: str, folder: Path) -> list[Question]:
    """The questions of a data set; `InvalidInput` names the known ones, or the file and line that cannot be used."""
    if name not in SOURCES:
        raise InvalidInput(f"unknown data set {name!r}; choose one of: {', '.join(SOURCES)}")
    return SOURCES[name](folder)


def _xquad_passage(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return text_of(row, "id"), text_of(row, "article"), text_of(row, "text")


def _xquad_question(row: Mapping[str, Any], article_of: Mapping[str, str]) -> tuple[str, str, tuple[str, ...]]:
    passage = text_of(row, "passage")
    if passage not in article_of:
        raise InvalidInput(f"passage {passage!r:.80} is not in xquad_passages.jsonl")
    return article_of[passage], text_of(row, "question"), answers_of(row)


def _multi_hop(path: Path) -> list[Question]:
    return _parse(path, _multi_hop_question, "question, answers, passages (title, text) and supporting (their indexes)")


def _multi_hop_question(row: Mapping[str, Any]) -> Question:
    passages, supporting = passages_of(row), row.get("supporting")
    indexes = range(len(passages))
    if not isinstance(supporting, list) or not all(type(index) is int and index in indexes for index in supporting):
        raise InvalidInput(f"supporting must be a list of indexes from 0 to {indexes[-1]}, got {supporting!r:.80}")
    others = [index for index in indexes if index not in supporting]
    chosen = tuple(passages[index] for index in [*supporting, *others][:PASSAGES])
    return Question(text_of(row, "question"), answers_of(row), chosen)


def _parse(path: Path, parse: Callable[[Mapping[str, Any]], T], form: str) -> list[T]:
    """As `read_lines`; `InvalidInput` where there is no file, or nothing in it."""
    try:
        rows = list(read_lines(path, parse, form))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}); give the folder that holds it") from error
    if not rows:
        raise InvalidInput(f"{path} holds no lines; give the folder with the data set's own file")
    return rows
