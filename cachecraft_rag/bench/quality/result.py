"""What `bench_quality` found, as JSON and as a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from cachecraft_rag.bench.quality.strict import reason, strict
from cachecraft_rag.bench.quality.variants import Variant
from cachecraft_rag.errors import InvalidInput


@strict
@dataclass(frozen=True, slots=True)
class Estimate:
    """A value over all questions and its 95% bootstrap interval, None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None


@strict
@dataclass(frozen=True, slots=True)
class VariantResult:
    """One way to answer.

    `of_full`: F1 over full prefill's, None where that is 0. `gap_recovered`: PGR, None where full prefill gains nothing
    over no context. `same_answer`: share of answers identical to full prefill's. `agreement`: share of the tokens of
    full prefill's answer where the best token is the same; `kl`: mean divergence there in nats, teacher forced;
    `kl_of_naive`: over that of naive reuse, None where that is 0.
    `share`: rows run for the context over its tokens, mean; `first_token_ratio`: TTFT over full prefill's, median over
    the `timed` questions, None where there are none. `f1_each` and `kl_each`: for each question, in the order of the
    result's `question_ids`; empty in results of before there were such.
    """

    name: str
    ratio: float | None
    f1: Estimate
    exact_match: Estimate
    of_full: Estimate | None
    gap_recovered: Estimate | None
    same_answer: Estimate
    agreement: Estimate
    kl: Estimate
    kl_of_naive: Estimate | None
    share: float
    first_token_ratio: float | None
    timed: int
    f1_each: tuple[float, ...] = ()
    kl_each: tuple[float, ...] = ()

    @property
    def label(self) -> str:
        return str(Variant(self.name, self.ratio))


@strict
@dataclass(frozen=True, slots=True)
class QualityResult:
    """`questions`: those answered in every way, of `asked`; `full_fails`: share of them where full prefill has F1 0.

    `compress`: how the KV of chunks was kept in 8 bits, None where it was not; `alone`: whether it was computed behind
    the prompt's head alone, without stand-in passages. `question_ids`: digests (sha256, hex) of the questions and their
    passages in order.
    """

    model: str
    dtype: str
    data: str
    questions: int
    asked: int
    max_tokens: int
    min_run: int
    seed: int
    context_tokens: float
    full_fails: float
    variants: tuple[VariantResult, ...]
    machine: dict[str, Any]
    compress: str | None = None
    alone: bool = True
    question_ids: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`; `InvalidInput` names the field that is not what it should be."""
        try:
            found = TypeAdapter(cls).validate_json(json.dumps(fields))
            for number, variant in enumerate(found.variants) if found.question_ids else ():
                for name in ("f1_each", "kl_each"):
                    if (count := len(getattr(variant, name))) != len(found.question_ids):
                        ids = f"{len(found.question_ids)} question_ids"
                        raise ValueError(f"variants.{number}.{name} has {count} numbers for {ids}")
        except ValueError as error:
            raise InvalidInput(
                f"this is not a result of the quality benchmark ({reason(error)}): give a file that cachecraft bench "
                "quality --json wrote"
            ) from error
        return found

    @classmethod
    def read(cls, file: Path) -> Self:
        """What `cachecraft bench quality --json` wrote."""
        try:
            return cls.from_dict(json.loads(file.read_text(encoding="utf-8")))
        except OSError as error:
            raise InvalidInput(f"{file} cannot be read ({error.strerror}); give a result of bench quality") from error
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{file}: {error}") from error

    @property
    def heading(self) -> str:
        of = f" of {self.asked}" if self.questions < self.asked else ""
        kept = f", chunk KV kept as {self.compress}" if self.compress else ""
        kept += ", chunks computed alone" if self.alone else ""
        return f"{self.data}: {self.questions}{of} questions, {self.model} in {self.dtype}{kept}"

    def __str__(self) -> str:
        header = ("", *COLUMNS)
        rows = [header, *((variant.label, *cells(variant)) for variant in self.variants)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
        lengths = f"{self.context_tokens:,.0f} tokens of context, answers of up to {self.max_tokens} tokens"
        timed = min((variant.timed for variant in self.variants), default=0)
        lines = [
            f"{self.heading}; {lengths}; full prefill has F1 0 on {self.full_fails:.0%}; TTFT of {timed} questions"
        ]
        for label, *texts in rows:
            texts = [text.rjust(width) for text, width in zip(texts, widths[1:], strict=True)]
            lines.append("  " + "  ".join([label.ljust(widths[0]), *texts]).rstrip())
        return "\n".join(lines)


COLUMNS = ("KL", "KL of naive", "tokens agree", "same answer", "F1", "EM", "F1 of full", "PGR", "computed", "TTFT")


def cells(variant: VariantResult) -> tuple[str, ...]:
    """The text of each of `COLUMNS`; intervals where they decide something."""
    return (
        estimate_text(variant.kl, ".3f"),
        estimate_text(variant.kl_of_naive, ".2f"),
        f"{variant.agreement.value:.3f}",
        f"{variant.same_answer.value:.2f}",
        estimate_text(variant.f1, ".3f"),
        f"{variant.exact_match.value:.2f}",
        estimate_text(variant.of_full, ".2f"),
        estimate_text(variant.gap_recovered, ".2f"),
        f"{variant.share:.1%}",
        "-" if variant.first_token_ratio is None else f"{variant.first_token_ratio:.3f}",
    )


def estimate_text(estimate: Estimate | None, form: str) -> str:
    """The value in that format, and its interval in brackets where it has one."""
    if estimate is None:
        return "-"
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return f"{estimate.value:{form}}"
    return f"{estimate.value:{form}} [{estimate.low:{form}}, {estimate.high:{form}}]"
