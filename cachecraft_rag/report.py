"""What happened to every chunk of one request, and what it cost."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

from cachecraft_rag import report_html, report_text
from cachecraft_rag.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table


# How the reasons of misses begin and end; what is stored after an answer is told by them.
NOT_STORED = "not in the store"
STORED_NOW = "stored now"


class Outcome(StrEnum):
    """HIT: the chunk's KV was reused. MISS: there was none. REFUSED: it could not be used, and the reason says why."""

    HIT = "HIT"
    MISS = "MISS"
    REFUSED = "REFUSED"


@dataclass(frozen=True, slots=True)
class ChunkReport:
    chunk_id: str
    outcome: Outcome
    # Why it was missed or refused; for a hit how it was reused, such as "moved by +512 tokens, other prefix": from
    # where it was computed, which is behind the stand-in passages.
    reason: str
    offset: int  # position of its first token in the prompt
    tokens: int
    recomputed: int  # its tokens that the model ran: for a miss all of them
    exact: bool  # its KV equals that of a full prefill: the prefix was identical, or everything was recomputed
    document_id: str | None = None
    recovered: bool = False  # found in a flat prompt by `recover_chunks`

    def __post_init__(self) -> None:
        if self.offset < 0 or not 0 <= self.recomputed <= self.tokens:
            raise InvalidInput(
                f"chunk {self.chunk_id}: offset={self.offset}, tokens={self.tokens}, recomputed={self.recomputed}: "
                "the offset must not be negative and recomputed must lie between 0 and tokens"
            )

    @property
    def reused(self) -> int:
        return self.tokens - self.recomputed


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds; each counts from the request's own start of that step, `first_token` from its submission."""

    lookup: float = 0.0
    staging: float = 0.0
    recompute: float = 0.0
    first_token: float | None = None  # None until it is known


@dataclass(frozen=True, slots=True)
class RequestReport:
    request_id: str
    policy: str
    ratio: float
    prompt_tokens: int
    prefix_cache_tokens: int  # found in vLLM's own prefix cache
    computed_tokens: int  # run by the model before the first token came out
    chunks: tuple[ChunkReport, ...] = ()  # in prompt order
    timings: Timings = Timings()
    slices: int = 0
    selection_tokens: float = 0.0  # run ahead to choose what to recompute, in tokens through all layers
    variants_stored: int = 0  # chunks whose KV behind the others was kept
    replans: int = 0  # plans made afresh after a preemption
    warnings: tuple[str, ...] = ()

    @property
    def hits(self) -> int:
        return self._count(Outcome.HIT)

    @property
    def misses(self) -> int:
        return self._count(Outcome.MISS)

    @property
    def refused(self) -> int:
        return self._count(Outcome.REFUSED)

    @property
    def reused_tokens(self) -> int:
        return sum(chunk.reused for chunk in self.chunks)

    @property
    def recomputed_tokens(self) -> int:
        """Tokens of hit chunks that the model ran all the same."""
        return sum(chunk.recomputed for chunk in self.chunks if chunk.outcome is Outcome.HIT)

    @property
    def share_computed(self) -> float:
        return self.computed_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def with_first_token(self, seconds: float) -> Self:
        return replace(self, timings=replace(self.timings, first_token=seconds))

    def with_recovered(self, recovered: Iterable[bool]) -> Self:
        """`recovered`: for each chunk, in prompt order, whether it was found in a flat prompt."""
        chunks = (
            replace(chunk, recovered=True, reason=f"{chunk.reason}; recovered from flat text") if found else chunk
            for chunk, found in zip(self.chunks, recovered, strict=True)
        )
        return replace(self, chunks=tuple(chunks))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types. `totals` repeats what the properties say, for readers in other languages."""
        fields = asdict(self)
        fields["chunks"] = [{**asdict(chunk), "outcome": chunk.outcome.value} for chunk in self.chunks]
        fields["warnings"] = list(self.warnings)
        fields["totals"] = {
            "hits": self.hits,
            "misses": self.misses,
            "refused": self.refused,
            "reused_tokens": self.reused_tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "share_computed": self.share_computed,
        }
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Inverse of `to_dict`. Keys that are not known (of a newer version) are ignored."""
        try:
            known = _known(cls, fields)
            known["chunks"] = tuple(
                ChunkReport(**{**_known(ChunkReport, chunk), "outcome": Outcome(chunk["outcome"])})
                for chunk in fields["chunks"]
            )
            known["timings"] = Timings(**_known(Timings, fields["timings"]))
            known["warnings"] = tuple(fields["warnings"])
            return cls(**known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(
                f"this is not a request report ({type(error).__name__}: {error}): "
                "pass what RequestReport.to_dict returned"
            ) from error

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=indent)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InvalidInput(f"this is not the JSON of a request report: {error}") from error
        return cls.from_dict(fields)

    def __str__(self) -> str:
        return report_text.text(self)

    def table(self) -> "Table":
        return report_text.table(self)

    def _repr_html_(self) -> str:
        return report_html.html(self)

    def _count(self, outcome: Outcome) -> int:
        return sum(chunk.outcome is outcome for chunk in self.chunks)


def _known(cls: type, fields: Mapping[str, Any]) -> dict[str, Any]:
    names = cls.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: value for name, value in fields.items() if name in names}
