"""Which entry leaves first: the one of the lowest rank."""

from __future__ import annotations

import itertools
from typing import Protocol

from cachecraft_rag.errors import InvalidInput


class Ranked(Protocol):
    """What a policy keeps with an entry."""

    rank: float
    frequency: float


class EvictionPolicy(Protocol):
    """`used` is told of every use, the storing itself included; `evicted` of every entry that left."""

    name: str

    def used(self, entry: Ranked, recomputed_share: float) -> None:
        """`recomputed_share`: of the entry's tokens, how many the model ran all the same, from 0 to 1 (1: all)."""

    def evicted(self, entry: Ranked) -> None: ...


class LeastRecentlyUsed:
    name = "lru"

    def __init__(self) -> None:
        self._uses = itertools.count(1)

    def used(self, entry: Ranked, recomputed_share: float) -> None:
        entry.rank = next(self._uses)

    def evicted(self, entry: Ranked) -> None:
        """Nothing ages: every use is later than all before it."""


class FrequencyReuse:
    """Cache-Craft's score: each use adds 1 / max(CFO, floor), CFO being the share that had to be recomputed.

    Published without ageing, where what was hot once never leaves. Here the rank of the last one evicted is added to
    the score at each use (known as dynamic ageing, from LFU-DA): newcomers start level with what is about to leave.
    """

    name = "score"

    def __init__(self, floor: float = 0.1) -> None:
        self._floor = floor
        self._age = 0.0

    def used(self, entry: Ranked, recomputed_share: float) -> None:
        entry.frequency += 1.0 / max(recomputed_share, self._floor)
        entry.rank = self._age + entry.frequency

    def evicted(self, entry: Ranked) -> None:
        self._age = max(self._age, entry.rank)


POLICIES: tuple[type[EvictionPolicy], ...] = (LeastRecentlyUsed, FrequencyReuse)


def get_eviction(name: str) -> EvictionPolicy:
    """A fresh policy; `InvalidInput` names those there are."""
    for policy in POLICIES:
        if policy.name == name:
            return policy()
    names = ", ".join(policy.name for policy in POLICIES)
    raise InvalidInput(f"eviction={name!r} is not known: give one of {names}")
