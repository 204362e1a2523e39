"""What the engine gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachecraft_rag.report import RequestReport


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer.

    `report`: chunk by chunk what was reused; None for a plain request. `first_token_seconds`: from the call to the
    first token (TTFT). `logprobs`: vLLM's own, one mapping of token id to `Logprob` for each generated token, where
    they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    finish_reason: str | None
    first_token_seconds: float
    report: RequestReport | None = None
    logprobs: tuple[Mapping[int, Any], ...] | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """One piece of a stream. The concatenated texts of all pieces are the answer's; only the last has `answer`."""

    text: str
    token_ids: tuple[int, ...] = ()
    answer: Answer | None = None


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
