"""SQuAD's scores of an answer against the gold answers (Rajpurkar et al., EMNLP 2016, arXiv:1606.05250)."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, words parted by single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(answer: str, golds: Sequence[str]) -> float:
    """1.0 if the answer equals one of the gold answers once both are normalised, else 0.0."""
    return float(normalise(answer) in {normalise(gold) for gold in golds})


def f1(answer: str, golds: Sequence[str]) -> float:
    """The best harmonic mean of precision and recall of words over the gold answers, in [0, 1]."""
    return max(_f1(normalise(answer).split(), normalise(gold).split()) for gold in golds)


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    common = sum((Counter(answer) & Counter(gold)).values())
    return 2 * common / (len(answer) + len(gold))


def gap_recovered(score: float, without: float, full: float) -> float | None:
    """PGR, performance gap recovered: (score - without context) / (full prefill - without context).

    None where full prefill gains nothing over no context, so that there is no gap to recover.
    """
    return (score - without) / (full - without) if full > without else None
