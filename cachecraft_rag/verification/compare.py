"""How far two greedy answers to one prompt are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachecraft_rag.answer import Answer


@dataclass(frozen=True, slots=True)
class Difference:
    """`logprob`: the largest difference of a log-probability along the common beginning, over the tokens both list.

    `parts_at`: index of the first token that differs, None where texts agree; `margin`: there, the difference between
    the two best log-probabilities of the reference.
    """

    logprob: float
    parts_at: int | None
    margin: float


def compare(reference: Answer, other: Answer) -> Difference:
    """Both answers must have been made with `logprobs`."""
    assert reference.logprobs is not None
    assert other.logprobs is not None
    largest = 0.0
    for index, (ours, theirs) in enumerate(zip(other.logprobs, reference.logprobs, strict=False)):
        largest = max(largest, _largest(theirs, ours))
        if reference.token_ids[index] != other.token_ids[index]:
            best = sorted((value.logprob for value in theirs.values()), reverse=True)
            return Difference(largest, index, best[0] - best[1])
    if len(reference.token_ids) != len(other.token_ids):
        return Difference(largest, min(len(reference.token_ids), len(other.token_ids)), float("inf"))
    return Difference(largest, None, 0.0)


def _largest(theirs: Mapping[int, Any], ours: Mapping[int, Any]) -> float:
    return max((abs(theirs[token].logprob - ours[token].logprob) for token in theirs.keys() & ours.keys()), default=0.0)
