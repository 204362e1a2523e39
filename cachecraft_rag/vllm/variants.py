"""Variants: a chunk's KV computed behind other chunks, kept beside its canonical KV, and which of them to reuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cachecraft_rag.reuse import CaptureSpan
from cachecraft_rag.reuse.fix_overhead import best_variant, fix_overhead
from cachecraft_rag.reuse.impact import LEAST_IMPACT, context_impact
from cachecraft_rag.reuse.overlap import PrefixChunk, adjusted_overlap
from cachecraft_rag.store import Entry, KeyMaker, KvIndex
from cachecraft_rag.store.entry import EntrySize
from cachecraft_rag.store.eviction import lowest_ranked
from cachecraft_rag.store.seen import SeenContext
from cachecraft_rag.vllm.protocol import RequestParams
from cachecraft_rag.vllm.reservation import reserve_piece

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Stored KV of a chunk and what it takes to repair it for a prompt.

    `overhead`: cache fix overhead at alpha = 1; `attention`: of each token on what was in front of it, None where
    nothing was; `same_context`: exactly the same pieces are in front now.
    """

    entry: Entry
    overhead: float
    attention: npt.NDArray[np.float32] | None
    same_context: bool


def best_candidate(entries: Sequence[Entry], in_front: Sequence[PrefixChunk], *, alone: bool) -> Candidate:
    """The entry of a chunk that is cheapest to repair behind `in_front`, the first of equal ones.

    `alone`: canonical KV was computed behind the head and nothing else, so that it needs no repair behind nothing else.
    """
    candidates = [_candidate(entry, in_front, alone) for entry in entries]
    return candidates[best_variant([candidate.overhead for candidate in candidates])]


def _candidate(entry: Entry, in_front: Sequence[PrefixChunk], alone: bool) -> Candidate:
    if entry.seen is None:
        same_context = alone and not in_front
        return Candidate(entry, 0.0 if same_context else LEAST_IMPACT, None, same_context)
    seen, statistics = entry.seen, entry.seen.statistics
    assert statistics is not None
    old = [PrefixChunk(key, tokens) for key, tokens in zip(seen.keys, seen.tokens, strict=True)]
    impact = context_impact(statistics.inter, seen.tokens, statistics.intra, entry.token_ids.size)
    overlap = adjusted_overlap(old, statistics.inter, in_front)
    return Candidate(entry, fix_overhead(impact, overlap, 1.0), statistics.on_context, old == list(in_front))


class VariantKeeper:
    """`limit`: how many variants of one chunk are kept; of more the one of the lowest rank goes."""

    def __init__(
        self, index: KvIndex, keys: KeyMaker, head: Ids, *, size: EntrySize, limit: int, min_chunk_tokens: int
    ) -> None:
        self._index = index
        self._keys = keys
        self._head = head
        self._size = size
        self._limit = limit
        self._min_chunk_tokens = min_chunk_tokens

    def reserve(self, params: RequestParams, token_ids: Ids, end: int) -> list[CaptureSpan]:
        """Set room aside for the chunks of a prompt that is computed in full up to `end`; their entries are acquired.

        Nothing for a prompt with another head, for a chunk with nothing in front, and for one cut off by `end`.
        """
        head = self._head.size
        if self._limit == 0 or not np.array_equal(token_ids[:head], self._head):
            return []
        spans = []
        pieces: list[tuple[int, int]] = []
        keys: list[str] = []
        for start, stop, chunk_id, digest, document_id in params.segments:
            start = max(start, head)
            if start >= stop:
                continue
            ids = token_ids[start:stop]
            make_key = self._keys.text if chunk_id is None else self._keys.chunk
            own = make_key(params.namespace, ids)
            if chunk_id is not None and pieces and stop <= end and stop - start >= self._min_chunk_tokens:
                seen = SeenContext(own, tuple(keys), tuple(last - first for first, last in pieces))
                entry = self._reserve(params.namespace, ids, start, (chunk_id, digest), seen)
                if entry is not None and entry.handle is not None:
                    if document_id is not None:
                        self._index.add_document(entry, document_id)
                    spans.append(CaptureSpan(entry.handle, start, stop, tuple(pieces)))
            pieces.append((start, stop))
            keys.append(own)
        return spans

    def _reserve(
        self, namespace: str, token_ids: Ids, start: int, identity: tuple[str, str | None], seen: SeenContext
    ) -> Entry | None:
        key = self._keys.variant(namespace, token_ids, seen.keys)
        if self._index.get(key) is not None or not self._make_place(seen.base):
            return None
        return reserve_piece(self._index, self._size, key, namespace, token_ids, start, identity, seen)

    def _make_place(self, base: str) -> bool:
        """Whether one variant more may be kept, once the lowest of those that are too many has gone."""
        kept = self._index.variants(base)
        if len(kept) < self._limit:
            return True
        may_go = [entry for entry in kept if entry.ready and not entry.pinned and entry.users == 0]
        for entry in lowest_ranked(may_go, 1):
            self._index.evict(entry)
        return len(self._index.variants(base)) < self._limit
