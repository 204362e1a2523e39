"""What `bench_quality` found, as JSON and as a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass
from dataclasses import fields as declared
from pathlib import Path
from typing import Any, Self

from cachecraft_rag.bench.quality.records import is_number
from cachecraft_rag.bench.quality.variants import Variant
from cachecraft_rag.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value over all questions and its 95% bootstrap interval, None where there is none."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any] | None, where: str) -> Self | None:
        """ValueError names the field that is not what it should be, with `where` before its name."""
        return None if fields is None else cls(**_checked(cls, fields, where))


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

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any], where: str, questions: int) -> Self:
        """As `Estimate.from_dict`; `questions`: those that the result names, 0 where it names none."""
        known = _checked(cls, fields, where)
        estimates = {name: Estimate.from_dict(known[name], f"{where}{name}.") for name in _ESTIMATES}
        each = {name: tuple(known.get(name, ())) for name in _EACH}
        for name, values in each.items():
            if questions and len(values) != questions:
                raise ValueError(f"{where}{name} has {len(values)} numbers for {questions} question_ids")
        return cls(**{**known, **estimates, **each})

    @property
    def label(self) -> str:
        return str(Variant(self.name, self.ratio))


_ESTIMATES = ("f1", "exact_match", "of_full", "gap_recovered", "same_answer", "agreement", "kl", "kl_of_naive")
_EACH = ("f1_each", "kl_each")


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
        """Inverse of `to_dict`."""
        try:
            known = _checked(cls, fields)
            ids = tuple(known.get("question_ids", ()))
            rows = [{"timed": known["questions"], **row} for row in known["variants"]]
            variants = tuple(VariantResult.from_dict(row, f"variants[{n}].", len(ids)) for n, row in enumerate(rows))
            return cls(**{**known, "variants": variants, "question_ids": ids})
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                f"this is not a result of the quality benchmark ({error}): give a file that cachecraft bench quality "
                "--json wrote"
            ) from error

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


def _every(values: object, holds: Callable[[Any], bool]) -> bool:
    return isinstance(values, list | tuple) and all(map(holds, values))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


# By the declared type of a field: what its JSON must be.
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("text", _is_text),
    "int": ("a whole number", lambda value: type(value) is int),
    "float": ("a number", is_number),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "dict[str, Any]": ("an object", _is_object),
    "Estimate": ("an object", _is_object),
    "tuple[float, ...]": ("a list of numbers", lambda values: _every(values, is_number)),
    "tuple[str, ...]": ("a list of texts", lambda values: _every(values, _is_text)),
    "tuple[VariantResult, ...]": ("a list of objects", lambda values: _every(values, _is_object)),
}


def _checked(kind: type[Any], fields: Mapping[str, Any], where: str = "") -> Mapping[str, Any]:
    """The fields, all that `kind` needs among them and each as it declares it."""
    if not _is_object(fields):
        raise ValueError(f"it is no object but {fields!r:.40}")
    for field in declared(kind):
        if field.name not in fields:
            if field.default is MISSING:
                raise ValueError(f"{where}{field.name} is missing")
            continue
        value = fields[field.name]
        declared_type, optional, _ = str(field.type).partition(" | None")
        wanted, holds = _KINDS[declared_type]
        if not (holds(value) or (optional and value is None)):
            raise ValueError(f"{where}{field.name} must be {wanted}, got {value!r:.40}")
    return fields
