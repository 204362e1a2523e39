"""One question answered in all ways, each compared with full prefill."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachecraft_rag.answer import Answer
from cachecraft_rag.bench.quality.data import Question
from cachecraft_rag.bench.quality.divergence import agreement, kl_divergence
from cachecraft_rag.bench.quality.exact_prefix import reorder_to_prefixes
from cachecraft_rag.bench.quality.forced_engine import ForcedEngine, Said
from cachecraft_rag.bench.quality.prompts import ask, ask_without_context
from cachecraft_rag.bench.quality.records import Record, Records
from cachecraft_rag.bench.quality.variants import EXACT_PREFIX, FULL, NO_CONTEXT, Variant
from cachecraft_rag.errors import CachecraftError
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.report import Outcome
from cachecraft_rag.reuse import get_policy

PLAIN: Mapping[str, Any] = {"reuse": False}


@dataclass(frozen=True, slots=True)
class _Way:
    """What is sent for a variant; `before`: a prompt whose KV vLLM's prefix cache must hold."""

    prompt: ChunkPrompt
    options: Mapping[str, Any]
    before: ChunkPrompt | None = None


class Measurer:
    """Answers the questions of one data set; `records` tells what need not be done again."""

    def __init__(
        self, forced: ForcedEngine, questions: Sequence[Question], records: Records, *, max_tokens: int, min_run: int
    ) -> None:
        self._forced = forced
        self._questions = questions
        self._records = records
        self._max_tokens = max_tokens
        self.min_run = min_run
        self._chunks = [question.chunks for question in questions]
        self._reordered = reorder_to_prefixes([[chunk.id for chunk in chunks] for chunks in self._chunks])

    def record(self, number: int, variant: Variant) -> Record | None:
        """What is known of question `number` answered in that way."""
        return self._records.get(self._key(number, variant), variant)

    def measure(self, number: int, variants: Iterable[Variant]) -> None:
        """Record what is not recorded yet of question `number`.

        The reference runs again where anything is missing, since its logits are not kept, along the tokens on record.
        """
        question = self._questions[number]
        known = self.record(number, FULL)
        missing = [variant for variant in variants if self.record(number, variant) is None]
        if known is not None and not missing:
            return
        engine = self._forced.engine
        engine.prewarm(self._chunks[number], progress=False)
        self._forced.forget_prompts()
        prompt = ask(self._chunks[number], question.question)
        if known is None:
            full = self._forced.say(prompt, self._max_tokens, fresh=True, **PLAIN)
            self._records.add(self._key(number, FULL), FULL, self._compared(full, full, full.answer, prompt))
        else:
            full = self._forced.force(prompt, known.token_ids, fresh=True, **PLAIN)
        for variant in missing:
            self._records.add(self._key(number, variant), variant, self._answer(number, variant, full))

    def _key(self, number: int, variant: Variant) -> str:
        """Digest of all in the data set that the answer depends on; for reordering that is earlier questions too."""
        digest = self._questions[number].digest
        if variant != EXACT_PREFIX:
            return digest
        reordered = self._reordered[number]
        return hashlib.sha256(f"{digest} {reordered.order} {reordered.shared}".encode()).hexdigest()

    def _answer(self, number: int, variant: Variant, full: Said) -> Record:
        way = self._way(number, variant)
        if variant == EXACT_PREFIX and self._reordered[number].donor is None:  # nothing to reuse: it is full prefill
            return self._compared(full, full, full.answer, way.prompt)
        if way.before is not None:
            self._forced.engine.generate(way.before, max_tokens=1, **PLAIN)
        said = self._forced.force(way.prompt, full.answer.token_ids, **way.options)
        self._check(said.answer)
        answer = full.answer
        if not agreement(full.logits, said.logits).all():  # greedy decoding would have left the forced path
            if variant.ratio is not None and get_policy(variant.name).needs_question_pass:
                self._forced.forget_prompts()  # such a policy sees what is cached and would choose anew
            answer = self._forced.engine.generate(way.prompt, max_tokens=self._max_tokens, **way.options)
        return self._compared(full, said, answer, way.prompt)

    def _way(self, number: int, variant: Variant) -> _Way:
        question = self._questions[number]
        if variant == NO_CONTEXT:
            return _Way(ask_without_context(question.question), PLAIN)
        if variant == EXACT_PREFIX:
            donor = self._reordered[number].donor
            before = None if donor is None else self._reordered_prompt(donor)
            return _Way(self._reordered_prompt(number), PLAIN, before)
        options = {"policy": variant.name, "recompute_ratio": variant.ratio, "min_run": self.min_run}
        return _Way(ask(self._chunks[number], question.question), options)

    def _reordered_prompt(self, number: int) -> ChunkPrompt:
        by_id = {chunk.id: chunk for chunk in self._chunks[number]}
        return ask([by_id[chunk_id] for chunk_id in self._reordered[number].order], self._questions[number].question)

    def _compared(self, full: Said, said: Said, answer: Answer, prompt: ChunkPrompt) -> Record:
        return Record(
            answer=answer.text,
            token_ids=answer.token_ids,
            kl=tuple(kl_divergence(full.logits, said.logits).tolist()),
            agrees=tuple(agreement(full.logits, said.logits).tolist()),
            share=self._context_share(said.answer, prompt),
            seconds=said.answer.first_token_seconds,
            full_seconds=full.answer.first_token_seconds,
        )

    def _context_share(self, answer: Answer, prompt: ChunkPrompt) -> float:
        """Rows that the model ran beyond one for each token of the question, over the tokens in front of the question.

        A full prefill has 1, naive reuse 0; what a policy runs to make its choice counts.
        """
        encoded = self._forced.engine.tokenizer.encode(prompt)
        if not encoded.chunks:
            return 0.0
        context = encoded.chunks[-1].stop
        asked = len(encoded.token_ids) - context
        report = answer.report
        if report is None:
            computed = float(answer.prompt_tokens - answer.prefix_cache_tokens)
        else:
            computed = report.computed_tokens + report.selection_tokens
        return max(0.0, computed - asked) / context

    def _check(self, answer: Answer) -> None:
        least = self._forced.engine.config.min_chunk_tokens
        for chunk in answer.report.chunks if answer.report is not None else ():
            if chunk.outcome is not Outcome.HIT and chunk.tokens >= least:
                raise CachecraftError(
                    f"chunk {chunk.chunk_id} was not reused ({chunk.reason}), so that the comparison would be void; "
                    "give the store more memory with CACHECRAFT_CPU_STORE_GB"
                )
