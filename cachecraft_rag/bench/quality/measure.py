"""One question answered in all ways, each compared with full prefill."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from cachecraft_rag.answer import Answer
from cachecraft_rag.bench.quality.data import Question
from cachecraft_rag.bench.quality.divergence import Logits, agreement, kl_divergence
from cachecraft_rag.bench.quality.forced_engine import ForcedEngine, Said
from cachecraft_rag.bench.quality.in_flight import Pending, in_flight
from cachecraft_rag.bench.quality.kept_logits import KeptLogits
from cachecraft_rag.bench.quality.records import Record, Records
from cachecraft_rag.bench.quality.shares import check_reused, context_share
from cachecraft_rag.bench.quality.variants import FULL, Variant
from cachecraft_rag.bench.quality.ways import Way, Ways
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.reuse import get_policy


@dataclass(frozen=True, slots=True)
class _Reference:
    """Full prefill's answer; `seconds`: its TTFT where it ran just now."""

    record: Record
    logits: Logits
    seconds: float | None


@dataclass(frozen=True, slots=True)
class _Asked:
    variant: Variant
    way: Way


class Measurer:
    """Answers the questions of one data set; `records` tells what need not be done again.

    `together`: so many ways of a question are in flight at once. Results do not depend on it beyond rounding: each
    way's blocks in vLLM's prefix cache carry a salt of their own.
    """

    def __init__(
        self,
        forced: ForcedEngine,
        questions: Sequence[Question],
        records: Records,
        logits: KeptLogits | None = None,
        *,
        max_tokens: int,
        min_run: int,
        together: int = 1,
    ) -> None:
        self._forced = forced
        self._records = records
        self._logits = logits or KeptLogits(None, "")
        self._max_tokens = max_tokens
        self._together = together
        self._ways = Ways(questions, min_run)

    def record(self, number: int, variant: Variant) -> Record | None:
        """What is known of question `number` answered in that way."""
        return self._records.get(self._ways.key(number, variant), variant)

    def measure(self, number: int, variants: Iterable[Variant], *, timed: bool = False) -> None:
        """Record what is not recorded yet of question `number`; with `timed` the TTFT of each way too.

        Where anything but a TTFT is missing and the reference's logits are not kept, the reference runs again, along
        the tokens on record.
        """
        wanted = list(dict.fromkeys([FULL, *variants]))
        found = {variant: self.record(number, variant) for variant in wanted}
        missing = [variant for variant, record in found.items() if record is None]
        if not missing and not (timed and any(record and record.seconds is None for record in found.values())):
            return
        if missing:
            self._forced.forget_prompts()
            full = self._reference(number)
            for group in self._in_order(number, [variant for variant in missing if variant != FULL]):
                self._answer(number, group, full)
        if timed:
            self._time(number, wanted)

    def _in_order(self, number: int, wanted: Sequence[Variant]) -> Iterator[list[Variant]]:
        """Those that reuse chunks as they were computed behind others, once such are stored; then the rest.

        They come first since what is recomputed in full leaves such, and in the question's own order. What an earlier
        question left of the same chunks is deleted before, so that the answers are those of an interrupted run.
        """
        engine, chunks = self._forced.engine, self._ways.chunks[number]
        using = [variant for variant in wanted if variant.ratio is not None and get_policy(variant.name).uses_variants]
        if using:
            engine.delete(chunk_ids=[chunk.id for chunk in chunks])
        engine.prewarm(chunks, progress=False)
        if using:
            engine.prewarm_variants([self._ways.stored_order(number)], progress=False)
            yield using
        rest = [variant for variant in wanted if variant not in using]
        if rest:
            yield rest

    def _reference(self, number: int) -> _Reference:
        way, key = self._ways.way(number, FULL), self._ways.key(number, FULL)
        known = self.record(number, FULL)
        if known is not None:
            logits = self._logits.get(key, known.token_ids)
            if logits is not None:
                return _Reference(known, logits, None)
            said = self._forced.force(way.prompt, known.token_ids, **way.options)
        else:
            said = self._forced.say(way.prompt, self._max_tokens, **way.options)
            seconds = said.answer.first_token_seconds
            known = self._compared(said.logits, said, way.prompt, seconds, seconds)
            known = replace(known, answer=said.answer.text, token_ids=said.answer.token_ids)
            self._add(number, FULL, known)
        self._logits.add(key, said.logits)
        return _Reference(known, said.logits, said.answer.first_token_seconds)

    def _answer(self, number: int, missing: Sequence[Variant], full: _Reference) -> None:
        alone = self._together == 1 and full.seconds is not None
        untimed = replace(full.record, seconds=None, full_seconds=None)
        for variant in missing:
            if self._ways.is_full_prefill(number, variant):
                self._add(number, variant, full.record if alone else untimed)
        asked = [_Asked(v, self._ways.way(number, v)) for v in missing if not self._ways.is_full_prefill(number, v)]
        parted: list[tuple[_Asked, Record]] = []
        starts = ((one, partial(self._start_forced, one.way, full)) for one in asked)
        for one, said in in_flight(starts, self._together):
            check_reused(self._forced.engine, said.answer)
            seconds = said.answer.first_token_seconds if alone else None
            record = self._compared(full.logits, said, one.way.prompt, seconds, full.seconds if alone else None)
            if all(record.agrees):  # greedy decoding would not have left the forced path
                record = replace(record, answer=full.record.answer, token_ids=full.record.token_ids)
                self._add(number, one.variant, record)
            else:
                parted.append((one, record))
        free = ((one, self._free_start(one[0].way)) for one in parted)
        for (one, record), answer in in_flight(free, self._together):
            self._add(number, one.variant, replace(record, answer=answer.text, token_ids=answer.token_ids))

    def _start_forced(self, way: Way, full: _Reference) -> Pending[Said]:
        self._send_before(way)
        return self._forced.submit_forced(way.prompt, full.record.token_ids, **way.options)

    def _free_start(self, way: Way) -> Callable[[], Pending[Answer]]:
        """Its forced answer left blocks behind that are its own: the same KV, found again."""
        return partial(self._forced.engine.submit, way.prompt, max_tokens=self._max_tokens, **way.options)

    def _time(self, number: int, variants: Iterable[Variant]) -> None:
        """One by one, each behind nothing but its own earlier prompts."""
        records = {variant: self.record(number, variant) for variant in variants}
        untimed = {variant: record for variant, record in records.items() if record and record.seconds is None}
        if not untimed:
            return
        self._forced.forget_prompts()
        full_seconds = self._first_token_seconds(self._ways.way(number, FULL))
        for variant in chain.from_iterable(self._in_order(number, list(untimed))):
            seconds = full_seconds
            if not self._ways.is_full_prefill(number, variant):
                seconds = self._first_token_seconds(self._ways.way(number, variant).apart(secrets.token_hex(16)))
            self._add(number, variant, replace(untimed[variant], seconds=seconds, full_seconds=full_seconds))

    def _first_token_seconds(self, way: Way) -> float:
        self._send_before(way)
        answer = self._forced.engine.generate(way.prompt, max_tokens=1, **way.options)
        check_reused(self._forced.engine, answer)
        return answer.first_token_seconds

    def _send_before(self, way: Way) -> None:
        if way.before is not None:
            self._forced.engine.generate(way.before, max_tokens=1, **way.options)

    def _add(self, number: int, variant: Variant, record: Record) -> None:
        self._records.add(self._ways.key(number, variant), variant, record)

    def _compared(
        self, reference: Logits, said: Said, prompt: ChunkPrompt, seconds: float | None, full_seconds: float | None
    ) -> Record:
        """All but the answer."""
        return Record(
            answer="",
            token_ids=(),
            kl=tuple(kl_divergence(reference, said.logits).tolist()),
            agrees=tuple(agreement(reference, said.logits).tolist()),
            share=context_share(self._forced.engine, prompt, said.answer),
            seconds=seconds,
            full_seconds=full_seconds,
        )
