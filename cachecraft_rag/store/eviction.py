"""Which entry leaves first: the one of the lowest rank."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from typing import Protocol, TypeVar

from cachecraft_rag.errors import InvalidInput


class Ranked(Protocol):
    """What a policy keeps with an entry; `rank` is minus infinity before the first use."""

    rank: float


class Evictable(Ranked, Protocol):
    @property
    def nbytes(self) -> int: ...

    @property
    def namespace(self) -> str: ...


E = TypeVar("E", bound=Evictable)


class EvictionPolicy(Protocol):
    name: str

    def used(self, entry: Ranked, recomputed_share: float, entries: int) -> None:
        """Count a use; the storing itself is one.

        `recomputed_share`: of the entry's tokens, how many the model ran all the same, from 0 to 1 (1: all);
        `entries`: how many there are in memory.
        """


class LeastRecentlyUsed:
    name = "lru"

    def __init__(self) -> None:
        self._uses = itertools.count(1)

    def used(self, entry: Ranked, recomputed_share: float, entries: int) -> None:
        entry.rank = next(self._uses)


def eviction_gain(overhead: float, floor: float) -> float:
    """What one use adds to an entry's score f_r: 1 / max(CFO, floor) (Cache-Craft, SIGMOD 2025, arXiv:2502.15734).

    `overhead`: the share of its tokens that had to be recomputed; `floor`, positive: what counts as the least, since
    an entry that is exact would otherwise be worth everything.
    """
    return 1.0 / max(overhead, floor)


class FrequencyReuse:
    """Cache-Craft's score, see `eviction_gain`. The entry of the lowest one is evicted.

    Published without ageing, where what was hot once never leaves. Here a use counts half after as many further uses as
    there are entries. Ranks are logarithms to the base 2 of the scores as seen from the first use: since all scores
    fall at the same rate, their order does not change while nothing is used.
    """

    name = "score"

    def __init__(self, floor: float = 0.1) -> None:
        self._floor = floor
        self._half_lives = 0.0

    def used(self, entry: Ranked, recomputed_share: float, entries: int) -> None:
        self._half_lives += 1.0 / max(entries, 1)
        gain = self._half_lives + math.log2(eviction_gain(recomputed_share, self._floor))
        high, low = max(entry.rank, gain), min(entry.rank, gain)
        entry.rank = high + math.log2(1.0 + 2.0 ** (low - high))


POLICIES: tuple[type[EvictionPolicy], ...] = (LeastRecentlyUsed, FrequencyReuse)


def get_eviction(name: str) -> EvictionPolicy:
    """A fresh policy; `InvalidInput` names those there are."""
    for policy in POLICIES:
        if policy.name == name:
            return policy()
    names = ", ".join(policy.name for policy in POLICIES)
    raise InvalidInput(f"eviction={name!r} is not known: give one of {names}")


def lowest_ranked(entries: Iterable[E], nbytes: int) -> list[E]:
    """As many as it takes to free `nbytes`, or all there are: by rank, the lowest first, equals in the order given."""
    if nbytes <= 0:
        return []
    heap = [(entry.rank, number, entry) for number, entry in enumerate(entries)]
    heapq.heapify(heap)
    taken: list[E] = []
    while heap and nbytes > 0:
        taken.append(heapq.heappop(heap)[2])
        nbytes -= taken[-1].nbytes
    return taken


def make_way(entries: Iterable[E], namespace: str, own_excess: int, excess: int) -> list[E] | None:
    """Which of `entries` must go so that a namespace frees `own_excess` bytes and all together `excess`.

    A namespace that is full loses its own; what is still over the capacity, anybody's. None where they are too few.
    """
    may_go = list(entries)
    own = lowest_ranked((entry for entry in may_go if entry.namespace == namespace), own_excess)
    freed = sum(entry.nbytes for entry in own)
    others = lowest_ranked((entry for entry in may_go if entry not in own), excess - freed)
    if freed < own_excess or freed + sum(entry.nbytes for entry in others) < excess:
        return None
    return own + others
