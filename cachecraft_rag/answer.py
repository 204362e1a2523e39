"""What the engine gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachecraft_rag.report import Outcome, RequestReport


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request. The last three are disjoint parts of `input_tokens`; the rest was computed and not kept.

    `cache_read`: not run by the model. `cache_creation`: of chunks that were not stored and were computed.
    `recomputed`: of stored chunks, run again to repair them.
    """

    input_tokens: int
    output_tokens: int
    cache_read: int
    cache_creation: int
    recomputed: int

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    `report`: chunk by chunk what was reused; None for a plain request. `first_token_seconds`: from the call to the
    first token (TTFT). `logprobs`: vLLM's own, one mapping of token id to `Logprob` for each generated token, where
    they were asked for. `prefix_cache_tokens`: found in vLLM's own prefix cache by a plain request.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: str | None
    first_token_seconds: float
    report: RequestReport | None = None
    logprobs: tuple[Mapping[int, Any], ...] | None = None
    stop_reason: int | str | None = None
    prefix_cache_tokens: int = 0

    @property
    def usage(self) -> Usage:
        report = self.report
        if report is None:
            return Usage(self.prompt_tokens, len(self.token_ids), self.prefix_cache_tokens, 0, 0)
        created = sum(chunk.recomputed for chunk in report.chunks if chunk.outcome is Outcome.MISS)
        return Usage(
            input_tokens=self.prompt_tokens,
            output_tokens=len(self.token_ids),
            cache_read=max(self.prompt_tokens - report.computed_tokens, 0),
            cache_creation=created,
            recomputed=report.recomputed_tokens,
        )


@dataclass(frozen=True, slots=True)
class Delta:
    """One piece of a stream. The concatenated texts of all pieces are the answer's; only the last has `answer`."""

    text: str
    token_ids: tuple[int, ...] = ()
    answer: Answer | None = None


@dataclass(frozen=True, slots=True)
class VariantsReport:
    """`stored`: variants stored now, of `chunks` chunks behind others; the rest was there, or had no room."""

    chunks: int
    stored: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.stored} variants stored of {self.chunks} chunks behind others, in {self.seconds:.2f} s"


@dataclass(frozen=True, slots=True)
class PrewarmReport:
    """`stored`, `present`: ids of chunks stored now, and of those that were there; `refused`: id to reason.

    `tokens`: of the chunks stored now.
    """

    stored: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    tokens: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = f" ({self.tokens / self.seconds:,.0f} tokens/s)" if self.seconds and self.tokens else ""
        summary = f"{len(self.stored)} chunks stored, {self.tokens:,} tokens in {self.seconds:.2f} s{rate}"
        lines = [f"{summary}; {len(self.present)} were there; {len(self.refused)} refused"]
        lines += [f"  {chunk_id[:8]} refused: {reason}" for chunk_id, reason in self.refused.items()]
        return "\n".join(lines)
