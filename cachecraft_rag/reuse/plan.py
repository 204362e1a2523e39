"""The plan of one request: which positions the model runs, which cached spans are staged, what is captured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cachecraft_rag.reuse.fix_overhead import overhead_at
from cachecraft_rag.reuse.policies import get_policy, recomputes_all
from cachecraft_rag.reuse.runs import count_in
from cachecraft_rag.reuse.select import select
from cachecraft_rag.reuse.selection import RepairableChunk, Scores, SelectionContext, SelectionPolicy

Positions = npt.NDArray[np.int64]
MAX_QUESTION_ROWS = 128  # the last ones, where the text behind the chunks is longer
_NO_ROWS: Positions = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PlanSegment:
    """One piece of the prompt, positions `start` to `stop` (exclusive), as the index sees it.

    `handle`: the stored entry that holds its KV, None where there is none; `cached_at`: the position its first token
    had when it was computed; `exact`: its whole prefix is token-for-token the one it was cached behind;
    `capture`: the handle to store its KV under once it is computed.
    """

    start: int
    stop: int
    key: str | None = None
    handle: int | None = None
    cached_at: int = 0
    exact: bool = False
    capture: int | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StagedSpan:
    """Rows `source_start` on of entry `handle`, to be written at prompt positions `start` to `stop`.

    K is rotated by `delta` positions: new position minus the one it was computed at.
    """

    handle: int
    source_start: int
    start: int
    stop: int
    delta: int


@dataclass(frozen=True, slots=True)
class CaptureSpan:
    """K and V of positions `start` to `stop` are kept under `handle` once they are computed.

    `pieces`: (start, stop) of each piece between the prompt's head and a variant; its attention on them is measured.
    """

    handle: int
    start: int
    stop: int
    pieces: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PendingChoice:
    """A choice that waits for what some rows show when they run ahead, over the staged KV alone.

    `question_rows`: sorted positions behind the last chunk whose attention is looked at, shape [rows];
    `deviation_rows`: those whose V is computed at an early layer. Either may be empty. `keys`: every stored span, also
    where it lies in vLLM's prefix cache; `chunks`: those that may be repaired.
    """

    policy: str
    ratio: float
    min_run: int
    question_rows: Positions
    deviation_rows: Positions
    keys: tuple[StagedSpan, ...]
    chunks: tuple[RepairableChunk, ...]
    bucket: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What the worker does for one request, for positions `num_computed_tokens` to `end` (exclusive).

    `compute`: T, sorted positions that the model runs, shape [T]. Every position of the range is in `compute` or in
    exactly one staged span. With a `pending` choice it lacks the chosen tokens until `choose`.
    """

    num_computed_tokens: int
    end: int
    compute: Positions
    staged: tuple[StagedSpan, ...]
    captures: tuple[CaptureSpan, ...]
    pending: PendingChoice | None = None

    def computed_share(self, start: int, stop: int) -> float:
        """How much of the positions `start` to `stop` is computed, from 0 to 1.

        Of a chunk whose tokens are not chosen yet it is the cache fix overhead, whatever will be asked of it.
        """
        if (waiting := self.pending) is not None:
            for chunk in waiting.chunks:
                if chunk.start <= start < chunk.stop:
                    return overhead_at(waiting.ratio, chunk.overhead)
        return count_in(self.compute, start, stop) / (stop - start)

    def choose(self, attention: Scores | None = None, deviation: Scores | None = None) -> Plan:
        """The plan with its choice made.

        `attention`: the question's on each position, `deviation`: of V at each position; shape [prompt_tokens].
        """
        waiting = self.pending
        assert waiting is not None
        context = SelectionContext(self.end, waiting.chunks, attention, deviation)
        return self.choose_again(select(get_policy(waiting.policy), context, waiting.ratio, waiting.min_run))

    def choose_again(self, chosen: npt.NDArray[np.integer[Any]]) -> Plan:
        """The plan with these positions computed as well, as far as they lie in its range."""
        waiting = self.pending
        assert waiting is not None
        mask = np.zeros(self.end, dtype=bool)
        mask[chosen[(chosen >= self.num_computed_tokens) & (chosen < self.end)]] = True
        mask[self.compute] = True
        _fill_bucket(mask, self.num_computed_tokens, self.end, waiting.bucket)
        return replace(self, compute=np.flatnonzero(mask).astype(np.int64, copy=False), pending=None)


def make_plan(
    segments: Sequence[PlanSegment],
    policy: SelectionPolicy,
    ratio: float,
    *,
    num_computed_tokens: int,
    end: int,
    min_run: int = 1,
    bucket: int = 1,
) -> Plan:
    """Plan positions `num_computed_tokens` to `end` of a prompt tiled by `segments`.

    Tokens are chosen for the whole prompt and only then cut to the range, so that a hit in vLLM's own prefix cache
    does not change which of the other tokens are recomputed. With `all`, or at ratio 1.0, nothing stored is used.
    Further reused tokens, the first ones, are computed until their number is a multiple of `bucket` or none is left.
    """
    prompt_tokens = segments[-1].stop if segments else 0
    mask = np.ones(prompt_tokens, dtype=bool)
    use_store = not recomputes_all(policy.name, ratio)
    reused = [s for s in segments if use_store and s.handle is not None]
    for segment in reused:
        mask[segment.start : segment.stop] = False
    repairable = [
        RepairableChunk(s.key or "", s.start, s.stop, s.statistics) for s in reused if not s.exact and s.key is not None
    ]
    pending = None
    if repairable and policy.budget(1, ratio) > 0:
        question = _question_rows(segments, num_computed_tokens, end) if policy.needs_question_pass else _NO_ROWS
        deviation = _NO_ROWS
        if policy.needs_deviation_pass:
            deviation = _deviation_rows(reused, repairable, num_computed_tokens)
        if question.size or deviation.size:
            rows = (question, deviation)
            pending = PendingChoice(policy.name, ratio, min_run, *rows, _keys(reused), tuple(repairable), bucket)
    if pending is None:
        mask[select(policy, SelectionContext(prompt_tokens, repairable), ratio, min_run)] = True
    mask[:num_computed_tokens] = False
    mask[end:] = False
    if pending is None:
        _fill_bucket(mask, num_computed_tokens, end, bucket)
    return Plan(
        num_computed_tokens=num_computed_tokens,
        end=end,
        compute=np.flatnonzero(mask).astype(np.int64, copy=False),
        staged=tuple(span for s in reused if (span := _staged(s, mask, num_computed_tokens, end)) is not None),
        captures=tuple(
            CaptureSpan(s.capture, s.start, s.stop)
            for s in segments
            if s.capture is not None and s.start >= num_computed_tokens and s.stop <= end
        ),
        pending=pending,
    )


def _question_rows(segments: Sequence[PlanSegment], lower: int, end: int) -> Positions:
    """The last positions behind the last chunk; none where no text follows the chunks."""
    behind = max((s.stop for s in segments if s.key is not None), default=0)
    return np.arange(max(behind, lower), end, dtype=np.int64)[-MAX_QUESTION_ROWS:]


def _deviation_rows(reused: Sequence[PlanSegment], chunks: Sequence[RepairableChunk], lower: int) -> Positions:
    """All positions up to the last of the chunks, but for those whose stored KV is exact."""
    rows = np.ones(max(chunk.stop for chunk in chunks), dtype=bool)
    rows[:lower] = False
    for segment in reused:
        if segment.exact:
            rows[segment.start : segment.stop] = False
    return np.flatnonzero(rows).astype(np.int64, copy=False)


def _keys(reused: Sequence[PlanSegment]) -> tuple[StagedSpan, ...]:
    """All stored spans whole, also where vLLM's prefix cache holds a part."""
    return tuple(
        StagedSpan(s.handle, 0, s.start, s.stop, s.start - s.cached_at) for s in reused if s.handle is not None
    )


def _fill_bucket(mask: npt.NDArray[np.bool_], lower: int, end: int, bucket: int) -> None:
    """Mark further positions, the first ones, until a multiple of `bucket` is marked or all are."""
    spare = np.flatnonzero(~mask[lower:end]) + lower
    mask[spare[: -int(mask.sum()) % bucket]] = True


def _staged(segment: PlanSegment, mask: npt.NDArray[np.bool_], lower: int, upper: int) -> StagedSpan | None:
    start, stop = max(segment.start, lower), min(segment.stop, upper)
    if start >= stop or mask[start:stop].all():
        return None
    assert segment.handle is not None
    return StagedSpan(
        handle=segment.handle,
        source_start=start - segment.start,
        start=start,
        stop=stop,
        delta=segment.start - segment.cached_at,
    )
