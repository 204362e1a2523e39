"""Results as tables in Markdown, and two results beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

import numpy as np

from cachecraft_rag.bench.quality.bootstrap import Columns, divided
from cachecraft_rag.bench.quality.result import (
    COLUMNS,
    QualityResult,
    VariantResult,
    cells,
    estimate_text,
)
from cachecraft_rag.bench.quality.summary import estimate
from cachecraft_rag.bench.quality.variants import check_ratios, ratio_text
from cachecraft_rag.errors import InvalidInput

_ONE_RATIO = ("none", "all")


def check_shown(results: Sequence[QualityResult], ratios: Sequence[float]) -> list[float]:
    """The ratios, or `InvalidInput` for none and for one that no result has."""
    known = sorted({variant.ratio for result in results for variant in result.variants if variant.ratio is not None})
    choice = f"give --ratios from {', '.join(map(ratio_text, known))}"
    shown = check_ratios(ratios)
    if not shown:
        raise InvalidInput(f"no ratio to show: {choice}")
    for ratio in shown:
        if ratio not in known:
            raise InvalidInput(f"ratio {ratio_text(ratio)} is in no result: {choice}")
    return shown


def result_tables(result: QualityResult, ratios: Sequence[float]) -> str:
    """The divergence of each policy at each ratio; then all that is known of the given ratios, and of the rivals."""
    lengths = f"{result.context_tokens:,.0f} tokens of context"
    shown = [
        variant
        for variant in result.variants
        if variant.ratio is None or variant.name in _ONE_RATIO or variant.ratio in ratios
    ]
    paragraphs = [
        f"**{result.heading}**: {lengths}, full prefill has F1 0 on {result.full_fails:.0%}.",
        "Mean KL, and in brackets what was computed:",
        _by_ratio(result.variants),
        f"At {', '.join(map(_percent, ratios))}:",
        _table(("way", *COLUMNS), [(_named(variant), *cells(variant)) for variant in shown]),
    ]
    return "\n\n".join(paragraphs)


def comparison_table(
    one: QualityResult,
    other: QualityResult,
    ways: Sequence[str] = (),
    over: str | None = None,
    *,
    names: tuple[str, str] = ("the first", "the other"),
) -> str:
    """KL and F1 of the ways of `one` over those of `other`, for the questions that both have.

    `ways`: labels such as `blend 0.15`, all that reuse chunks where it is empty; `over`: what each is compared with,
    where it is not the same way; `names`: what messages call the two. Brackets hold 95% intervals of a paired bootstrap
    over questions.

    Raises `InvalidInput` for a way that a result does not have, and where the results share no question or no way or
    differ in the length of answers.
    """
    if one.max_tokens != other.max_tokens:
        raise InvalidInput(
            f"answers of up to {one.max_tokens} tokens ({names[0]}) and of up to {other.max_tokens} ({names[1]}) say "
            "nothing about each other: give two results of the same --max-tokens"
        )
    shared = sorted(set(one.question_ids) & set(other.question_ids))
    if not shared:
        raise InvalidInput(
            "the results have no question in common, or were written before they named theirs: give two of one data "
            "set; bench quality --minutes 0 writes a result anew from its records"
        )
    labels = ways or _common_ways(one, other, over, names)
    rows = []
    for label in labels:
        mine, theirs = _find(one, label), _find(other, over or label)
        texts = [_named(mine)]
        for values, there, form in ((mine.kl_each, theirs.kl_each, ".3f"), (mine.f1_each, theirs.f1_each, ".2f")):
            pair = np.stack([_of(one, values, shared), _of(other, there, shared)], axis=1)
            means = pair.mean(axis=0)
            ratio = estimate(pair, _ratio) if means[1] > 0 else None
            texts += [f"{means[0]:{form}}", f"{means[1]:{form}}", estimate_text(ratio, ".2f")]
        rows.append(tuple(texts))
    against = f"`{over}`" if over else "the same way"
    heading = f"**{one.heading}**, over {against} of **{other.heading}**; {len(shared)} questions in both:"
    if (one.model, one.dtype) != (other.model, other.dtype):
        heading += "\n\nThe models or their dtypes differ: each KL is to the own full prefill, along its own answers."
    return f"{heading}\n\n{_table(('way', 'KL', 'KL there', 'ratio', 'F1', 'F1 there', 'ratio'), rows)}"


def _common_ways(one: QualityResult, other: QualityResult, over: str | None, names: tuple[str, str]) -> list[str]:
    """Labels of what reuses chunks in `one` and, where it is compared with the same way, in `other`."""
    mine, theirs = ([v.label for v in result.variants if v.ratio is not None] for result in (one, other))
    common = [label for label in mine if over is not None or label in theirs]
    if not common:
        has = " and ".join(
            f"{name} has {', '.join(found) or 'none'}" for name, found in zip(names, (mine, theirs), strict=True)
        )
        raise InvalidInput(
            f"no way that reuses chunks is in both: {has}; set one against another with --ways and --over"
        )
    return common


def _percent(ratio: float) -> str:
    """Exact, so that no two ratios look the same."""
    return f"{(100 * Decimal(str(ratio))).normalize():f}%"


def _by_ratio(variants: Sequence[VariantResult]) -> str:
    found = {(v.name, v.ratio): v for v in variants if v.ratio is not None and v.name not in _ONE_RATIO}
    names = list(dict.fromkeys(name for name, _ in found))
    ratios = sorted({ratio for _, ratio in found if ratio is not None})
    rows = []
    for name in names:
        shown = [found.get((name, ratio)) for ratio in ratios]
        rows.append((f"`{name}`", *("-" if v is None else f"{v.kl.value:.3f} ({v.share:.1%})" for v in shown)))
    return _table(("policy", *map(_percent, ratios)), rows)


def _of(result: QualityResult, values: Sequence[float], questions: Sequence[str]) -> Columns:
    """`values`, one for each question of the result, of some of them."""
    by_question = dict(zip(result.question_ids, values, strict=True))
    return np.array([by_question[question] for question in questions], dtype=np.float64)


def _ratio(means: Columns) -> Columns:
    return divided(means[:, 0], means[:, 1])


def _find(result: QualityResult, label: str) -> VariantResult:
    for variant in result.variants:
        if variant.label == label:
            return variant
    known = ", ".join(variant.label for variant in result.variants)
    raise InvalidInput(f"{label!r} is no way that {result.heading} has; it has {known}")


def _named(variant: VariantResult) -> str:
    return variant.label if variant.ratio is None else f"`{variant.label}`"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows))
