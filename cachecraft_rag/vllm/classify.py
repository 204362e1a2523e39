"""Classifying the chunks of a prompt against the index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from cachecraft_rag.report import NOT_STORED, STORED_NOW, Outcome
from cachecraft_rag.reuse import PlanSegment, get_policy
from cachecraft_rag.reuse.overlap import PrefixChunk
from cachecraft_rag.store import Entry, KeyMaker, KvIndex
from cachecraft_rag.store.entry import EntrySize
from cachecraft_rag.vllm.disk_tier import DiskTier
from cachecraft_rag.vllm.protocol import RequestParams
from cachecraft_rag.vllm.reservation import reserve_piece
from cachecraft_rag.vllm.variants import Candidate, best_candidate

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Finding:
    """What the index says of one piece. `chunk` is the index of its segment in the request; None for the head."""

    segment: PlanSegment
    outcome: Outcome | None
    reason: str
    chunk: int | None


class Classifier:
    """Looks up pieces of prompts; reserves room for what may be stored from this very request."""

    def __init__(
        self,
        index: KvIndex,
        keys: KeyMaker,
        head: Sequence[int] | Ids,
        *,
        size: EntrySize,
        min_chunk_tokens: int,
        max_model_len: int | None = None,
        stand_in: Sequence[int] | Ids = (),
        disk: DiskTier | None = None,
        lossless: bool = True,
    ) -> None:
        """`head`: what prompts begin with; `stand_in`: what follows it while the canonical KV of a chunk is computed.

        `lossless`: stored KV is what was computed, so that reuse behind the same prefix is exact.
        """
        self._index = index
        self._disk = disk or DiskTier(index, None, size)
        self._keys = keys
        self._head = np.asarray(head, dtype=np.int32)
        self._canonical = np.concatenate((self._head, np.asarray(stand_in, dtype=np.int32)))
        # A request that stores a chunk has one token behind it, and vLLM wants room for one more.
        self._longest = None if max_model_len is None else max_model_len - self._canonical.size - 2
        self._size = size
        self._lossless = lossless
        self._min_chunk_tokens = min_chunk_tokens

    @property
    def _alone(self) -> bool:
        """Whether the canonical KV of a chunk is computed behind the head and nothing else."""
        return self._canonical.size == self._head.size

    def awaits_pending(self, params: RequestParams, token_ids: Ids) -> bool:
        """Whether a chunk of the prompt, or what it is computed behind, is being computed for another request."""
        if self.behind_stand_in(params, token_ids):
            entry = self._index.get(self._keys.head(params.namespace, self._canonical))
            if entry is not None and not entry.ready:
                return True
        for start, stop, chunk_id, *_ in params.segments:
            if chunk_id is not None and stop - start >= self._min_chunk_tokens:
                entry = self._index.get(self._keys.chunk(params.namespace, token_ids[start:stop]))
                if entry is not None and not entry.ready:
                    return True
        return False

    def behind_stand_in(self, params: RequestParams, token_ids: Ids) -> bool:
        """Whether a request is there to compute the canonical KV of a chunk, behind head and stand-in passages."""
        return params.prewarm and not self._alone and self._is_canonical(token_ids)

    def bytes_to_store(self, params: RequestParams) -> int:
        """Memory that the chunks of a prewarm take, if none is there yet."""
        tokens = sum(stop - start for start, stop, chunk_id, *_ in params.segments if chunk_id is not None)
        return self._size.of(tokens) + self._size.of(self._canonical.size)

    def classify(
        self,
        params: RequestParams,
        token_ids: Ids,
        *,
        store: bool,
        lower: int,
        upper: int,
        read_from: int | None = 0,
        withdrawn: Collection[int] = (),
    ) -> list[Finding]:
        """Findings that tile the prompt. Entries named by a finding's `handle` or `capture` are acquired.

        `store`: whether canonical KV that this request computes, at positions `lower` to `upper`, may be stored;
        `read_from`: what is stored is read from that position on, and must come from the disk if it is there; None
        where nothing is read. `withdrawn`: segments that are not stored, since their chunks were deleted meanwhile.
        """

        def reads(start: int, stop: int) -> bool:
            return read_from is not None and stop > read_from and start < upper

        keys = {
            number: self._keys.chunk(params.namespace, token_ids[start:stop])
            for number, (start, stop, chunk_id, *_) in enumerate(params.segments)
            if chunk_id is not None
        }
        held = self._hold(keys.values())
        is_canonical = self._is_canonical(token_ids)
        head = self._head
        behind_stand_in = self.behind_stand_in(params, token_ids)
        keeps_stand_in = behind_stand_in and self._index.has_room(self.bytes_to_store(params), params.namespace)
        # In any other request what is in front of a chunk may be KV that was moved and repaired.
        store_chunks = store and (behind_stand_in or self._alone)
        head_matches = bool(np.array_equal(token_ids[: head.size], head))
        uses_variants = head_matches and get_policy(params.policy).uses_variants
        in_front: list[PrefixChunk] = []
        findings: list[Finding] = []
        for number, (start, stop, chunk_id, digest, document_id) in enumerate(params.segments):
            if start == 0 and head_matches and 0 < head.size <= stop and chunk_id is None:
                storable = store and lower == 0 and head.size <= upper
                read = behind_stand_in or reads(0, head.size)
                findings.append(self._fixed_finding(params.namespace, 0, head.size, storable, read))
                start = head.size
            if start == head.size and behind_stand_in and chunk_id is None:
                stop_in = self._canonical.size
                if keeps_stand_in:
                    storable = store and lower <= start and stop_in <= upper
                    findings.append(self._fixed_finding(params.namespace, start, stop_in, storable, True))
                else:  # there is room for the chunk or for them: computed, not stored
                    findings.append(Finding(PlanSegment(start, stop_in), None, "", None))
                start = stop_in
            if start == stop:
                continue
            if chunk_id is None:
                findings.append(Finding(PlanSegment(start, stop), None, "", number))
                if uses_variants:
                    in_front.append(PrefixChunk(self._keys.text(params.namespace, token_ids[start:stop]), stop - start))
                continue
            key = keys[number]
            canonical = is_canonical and start == self._canonical.size
            finding = self._chunk_finding(
                params.namespace,
                PlanSegment(start, stop),
                key,
                token_ids[start:stop],
                number,
                (chunk_id, digest),
                canonical=canonical,
                in_front=in_front if uses_variants else None,
                store=store_chunks and canonical and start >= lower and stop <= upper and number not in withdrawn,
                read=reads(start, stop),
            )
            if number in withdrawn and finding.outcome is Outcome.MISS:
                finding = replace(finding, reason=f"{NOT_STORED}: it was deleted while the request waited")
            elif number not in withdrawn:
                self._note_document(finding, document_id)
            findings.append(finding)
            in_front.append(PrefixChunk(key, stop - start))
        for handle in held:
            self._index.release(handle)
        return findings

    def _hold(self, keys: Iterable[str]) -> list[int]:
        """Acquire those that memory has, lest one is evicted to make room for another of the same prompt."""
        held = []
        for entry in filter(None, map(self._index.get, keys)):
            if entry.handle is not None:
                self._index.acquire(entry)
                held.append(entry.handle)
        return held

    def _is_canonical(self, token_ids: Ids) -> bool:
        """Whether a prompt begins with what the canonical KV of chunks is computed behind."""
        return bool(np.array_equal(token_ids[: self._canonical.size], self._canonical))

    def _fixed_finding(self, namespace: str, start: int, stop: int, store: bool, read: bool) -> Finding:
        """The head, or the stand-in passages behind it."""
        key = self._keys.head(namespace, self._canonical[:stop])
        entry = self._disk.find(key).entry
        segment = PlanSegment(start, stop, key=key, cached_at=start)
        if entry is not None and entry.ready:
            if read and not self._disk.bring(entry):
                return Finding(segment, None, "", None)
            return Finding(replace(segment, handle=self._use(entry), exact=self._lossless), Outcome.HIT, "", None)
        if entry is None and store:
            handle = self._reserve(key, namespace, self._canonical[start:stop], start)
            segment = replace(segment, capture=handle)
        return Finding(segment, None, "", None)

    def _chunk_finding(
        self,
        namespace: str,
        segment: PlanSegment,
        key: str,
        token_ids: Ids,
        number: int,
        identity: tuple[str, str | None],
        *,
        canonical: bool,
        in_front: Sequence[PrefixChunk] | None,
        store: bool,
        read: bool,
    ) -> Finding:
        """`in_front`: the pieces before it, where a variant may be reused; otherwise None."""
        _, digest = identity
        if token_ids.size < self._min_chunk_tokens:
            reason = f"{token_ids.size} tokens are fewer than min_chunk_tokens={self._min_chunk_tokens}"
            return Finding(segment, Outcome.REFUSED, reason, number)
        if self._longest is not None and token_ids.size > self._longest:
            reason = f"{token_ids.size} tokens do not fit into the model's context behind head and stand-in passages"
            return Finding(segment, Outcome.REFUSED, reason, number)
        segment = replace(segment, key=key)
        found = self._disk.find(key)
        entry, variant = found.entry, None
        if in_front is not None:
            variant = self._best(key, entry, in_front)
            entry = variant.entry if variant is not None else entry
        if entry is None:
            if not store:
                return Finding(segment, Outcome.MISS, found.reason, number)
            handle = self._reserve(key, namespace, token_ids, segment.start, identity)
            reason = f"{found.reason}; {STORED_NOW}" if handle is not None else f"{found.reason}, which has no room"
            return Finding(replace(segment, capture=handle), Outcome.MISS, reason, number)
        if not np.array_equal(entry.token_ids, token_ids):
            return Finding(segment, Outcome.REFUSED, "the stored token ids differ: a collision of keys", number)
        if entry.digest is not None and digest is not None and entry.digest != digest:
            entry_reason = "the stored text has another sha256 though its token ids are the same"
            return Finding(segment, Outcome.REFUSED, entry_reason, number)
        if not entry.ready:
            return Finding(segment, Outcome.MISS, "its KV is being computed right now", number)
        if read and not self._disk.bring(entry):
            return Finding(segment, Outcome.REFUSED, "on disk, but memory has no room to read it into", number)
        moved = segment.start - entry.cached_at
        exact = moved == 0 and (variant.same_context if variant is not None else canonical)
        reason = "same prefix as when it was stored" if exact else f"moved by {moved:+d} tokens, other prefix"
        if entry.seen is not None:
            reason += f"; the variant behind {len(entry.seen.keys)} pieces"
        if not self._lossless:
            exact, reason = False, f"{reason}, compressed"
        segment = replace(segment, key=entry.key, handle=self._use(entry), cached_at=entry.cached_at, exact=exact)
        if variant is not None:
            statistics = {"overhead": variant.overhead, "attention": variant.attention}
            segment = replace(segment, statistics=statistics)
        return Finding(segment, Outcome.HIT, reason, number)

    def _best(self, key: str, canonical: Entry | None, in_front: Sequence[PrefixChunk]) -> Candidate | None:
        """The stored KV of a chunk that is cheapest to repair; None where none is ready."""
        entries = [canonical] if canonical is not None and canonical.ready else []
        entries += [entry for entry in self._index.variants(key) if entry.ready]
        return best_candidate(entries, in_front, alone=self._alone) if entries else None

    def _use(self, entry: Entry) -> int | None:
        """The handle of an entry, acquired; None where it is on disk and not needed."""
        if entry.handle is not None:
            self._index.acquire(entry)
        return entry.handle

    def _reserve(
        self,
        key: str,
        namespace: str,
        token_ids: Ids,
        start: int,
        identity: tuple[str | None, str | None] = (None, None),
    ) -> int | None:
        entry = reserve_piece(self._index, self._size, key, namespace, token_ids, start, identity)
        return None if entry is None else entry.handle

    def _note_document(self, finding: Finding, document_id: str | None) -> None:
        entry = self._index.get(finding.segment.key) if finding.segment.key is not None else None
        base = self._index.get(entry.seen.base) if entry is not None and entry.seen is not None else None
        for owned in (entry, base):
            if owned is not None and document_id is not None:
                self._index.add_document(owned, document_id)
