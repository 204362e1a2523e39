"""Hit rates of eviction policies over streams of questions. Runs the store's own index, without a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cachecraft_rag.bench.streams import Stream
from cachecraft_rag.store import Entry, KvIndex
from cachecraft_rag.store.eviction import EvictionPolicy, FrequencyReuse, LeastRecentlyUsed, Ranked

RATIO = 0.15  # what a moved chunk recomputes; one that stands first does not


class FrequencyOnly:
    """Uses counted, never forgotten: for comparison."""

    name = "frequency"

    def used(self, entry: Ranked, recomputed_share: float, entries: int) -> None:
        entry.rank = max(entry.rank, 0.0) + 1.0


POLICIES: tuple[Callable[[], EvictionPolicy], ...] = (LeastRecentlyUsed, FrequencyOnly, FrequencyReuse)


@dataclass(frozen=True, slots=True)
class HitRate:
    """`hits`: share of the chunk uses that were hits; `tokens`: the same, by size."""

    stream: str
    policy: str
    capacity_share: float
    hits: float
    tokens: float


@dataclass(frozen=True, slots=True)
class EvictionResult:
    rates: tuple[HitRate, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        header = f"{'stream':40} {'store':>6}  {'policy':10} {'hits':>6} {'by tokens':>10}"
        lines = [
            f"{rate.stream:40} {rate.capacity_share:6.0%}  {rate.policy:10} {rate.hits:6.1%} {rate.tokens:10.1%}"
            for rate in self.rates
        ]
        return "\n".join([header, *lines])


def bench_eviction(streams: Sequence[Stream], capacity_shares: Sequence[float] = (0.5, 0.25)) -> EvictionResult:
    """Every policy over every stream, in stores that hold these shares of all chunks."""
    return EvictionResult(
        tuple(simulate(stream, make(), share) for stream in streams for share in capacity_shares for make in POLICIES)
    )


def simulate(stream: Stream, policy: EvictionPolicy, capacity_share: float) -> HitRate:
    """What is missed is stored. The chunks of one question are in use together, as in the engine."""
    index = KvIndex(int(sum(stream.sizes) * capacity_share), policy)
    hits = uses = hit_tokens = tokens = 0
    for question in stream.questions:
        held: list[int] = []
        for place, chunk in enumerate(question):
            size = stream.sizes[chunk]
            entry = index.get(str(chunk))
            uses, tokens = uses + 1, tokens + size
            if entry is not None:
                hits, hit_tokens = hits + 1, hit_tokens + size
                index.touch(entry, 0.0 if place == 0 else RATIO)
            else:
                entry = _store(index, chunk, size)
            if entry is not None and entry.handle is not None:
                index.acquire(entry)
                held.append(entry.handle)
        for handle in held:
            index.release(handle)
        index.take_freed()
    return HitRate(stream.name, policy.name, capacity_share, hits / uses, hit_tokens / tokens)


def _store(index: KvIndex, chunk: int, size: int) -> Entry | None:
    entry = index.reserve(
        str(chunk), namespace="bench", token_ids=np.zeros(1, dtype=np.int32), nbytes=size, cached_at=0, chunk_id="id"
    )
    if entry is not None and entry.handle is not None:
        index.commit(entry.handle)
    return entry
