"""From records of questions to the numbers of each variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cachecraft_rag.bench.quality.bootstrap import Columns, divided, paired_bootstrap
from cachecraft_rag.bench.quality.data import Question
from cachecraft_rag.bench.quality.records import Record
from cachecraft_rag.bench.quality.result import Estimate, VariantResult
from cachecraft_rag.bench.quality.scores import exact_match, f1, gap_recovered
from cachecraft_rag.bench.quality.variants import FULL, NAIVE, NO_CONTEXT, Variant

Answers = Mapping[Variant, Record]
# Columns of what is compared side by side.
_F1, _EM, _SAME, _AGREES, _KL, _NAIVE_KL, _FULL_F1, _NO_CONTEXT_F1 = range(8)


def summarise(questions: Sequence[Question], answers: Sequence[Answers]) -> tuple[VariantResult, ...]:
    """One result for each variant. `answers`: for each question its record of every variant, full prefill included."""
    return tuple(_summarise(variant, questions, answers) for variant in answers[0])


def share_full_fails(questions: Sequence[Question], answers: Sequence[Answers]) -> float:
    """Share of the questions where full prefill itself has no word of the answer right."""
    pairs = zip(questions, answers, strict=True)
    return float(np.mean([f1(records[FULL].answer, question.answers) == 0.0 for question, records in pairs]))


def _summarise(variant: Variant, questions: Sequence[Question], answers: Sequence[Answers]) -> VariantResult:
    columns = np.array(
        [_row(variant, question, records) for question, records in zip(questions, answers, strict=True)],
        dtype=np.float64,
    )
    means = columns.mean(axis=0)
    records = [records[variant] for records in answers]
    ratios = [ratio for ratio in (record.first_token_ratio for record in records) if ratio is not None]
    return VariantResult(
        name=variant.name,
        ratio=variant.ratio,
        f1=estimate(columns, lambda m: m[:, _F1]),
        exact_match=estimate(columns, lambda m: m[:, _EM]),
        of_full=estimate(columns, _of_full) if means[_FULL_F1] > 0 else None,
        gap_recovered=(
            estimate(columns, _gap)
            if gap_recovered(means[_F1], means[_NO_CONTEXT_F1], means[_FULL_F1]) is not None
            else None
        ),
        same_answer=estimate(columns, lambda m: m[:, _SAME]),
        agreement=estimate(columns, lambda m: m[:, _AGREES]),
        kl=estimate(columns, lambda m: m[:, _KL]),
        kl_of_naive=estimate(columns, _of_naive) if means[_NAIVE_KL] > 0 else None,
        share=float(np.mean([record.share for record in records])),
        first_token_ratio=float(np.median(ratios)) if ratios else None,
        timed=len(ratios),
        f1_each=_rounded(columns[:, _F1]),
        kl_each=_rounded(columns[:, _KL]),
    )


def _rounded(values: Columns) -> tuple[float, ...]:
    """Six digits: more say nothing, and fill files."""
    return tuple(float(f"{value:.6g}") for value in values)


def _row(variant: Variant, question: Question, records: Answers) -> tuple[float, ...]:
    record, full = records[variant], records[FULL]
    return (
        f1(record.answer, question.answers),
        exact_match(record.answer, question.answers),
        float(record.answer == full.answer),
        float(np.mean(record.agrees)),
        float(np.mean(record.kl)),
        float(np.mean(records[NAIVE].kl)),
        f1(full.answer, question.answers),
        f1(records[NO_CONTEXT].answer, question.answers),
    )


def estimate(columns: Columns, statistic: Callable[[Columns], Columns]) -> Estimate:
    """A statistic of column means (see `paired_bootstrap`) with its interval."""
    value = float(statistic(columns.mean(axis=0, keepdims=True))[0])
    interval = paired_bootstrap(columns, statistic)
    return Estimate(value, *interval) if interval is not None else Estimate(value)


def _of_full(means: Columns) -> Columns:
    return divided(means[:, _F1], means[:, _FULL_F1])


def _of_naive(means: Columns) -> Columns:
    return divided(means[:, _KL], means[:, _NAIVE_KL])


def _gap(means: Columns) -> Columns:
    """PGR; not defined in a sample where full prefill gains nothing."""
    gaps = [gap_recovered(row[_F1], row[_NO_CONTEXT_F1], row[_FULL_F1]) for row in means]
    return np.array([np.nan if gap is None else gap for gap in gaps], dtype=np.float64)
