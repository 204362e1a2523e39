"""What `calibrate` found, as JSON and as a table."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cachecraft_rag.calibration.choose import Choice
from cachecraft_rag.errors import StoreError


@dataclass(frozen=True, slots=True)
class RatioResult:
    """One ratio over all samples.

    `agreement`: share of full prefill's answer tokens that are the most likely one here too, teacher forced, mean over
    samples with its 95% bootstrap interval; `kl`: mean divergence in nats. `share`: rows run for the context over its
    tokens, mean; `first_token_ratio`: TTFT over full prefill's, median over the samples that were timed.
    """

    ratio: float
    agreement: float
    agreement_low: float
    agreement_high: float
    kl: float
    share: float
    first_token_ratio: float

    @property
    def interval(self) -> str:
        return f"{self.agreement:.3f} [{self.agreement_low:.3f}, {self.agreement_high:.3f}]"


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """`answer_tokens`: that were compared; `context_tokens`: mean; `questions`: of the samples, in order;
    `skipped_questions`: that share no word with any chunk; `written_to`: None where nothing was kept.
    """

    model: str
    dtype: str
    policy: str
    target: float
    samples: int
    chunks_each: int
    context_tokens: float
    answer_tokens: int
    ratios: tuple[RatioResult, ...]
    choice: Choice
    questions: tuple[str, ...]
    written_to: str | None
    skipped_questions: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Its fields, whether a ratio below 1 meets the target, and the conclusion in words."""
        return {**asdict(self), "target_met_below_1": not self.choice.is_exact, "conclusion": self._conclusion()}

    def __str__(self) -> str:
        heading = (
            f"{self.model} in {self.dtype}, policy {self.policy}: {self.samples} samples of {self.chunks_each} chunks"
        )
        lines = [
            f"{heading}, {self.context_tokens:,.0f} tokens each; {self.answer_tokens:,} answer tokens compared",
            f"  {'ratio':<7}{'tokens agree':<24}{'KL':>7}{'computed':>10}{'TTFT':>8}",
        ]
        for row in self.ratios:
            mark = " <-" if row.ratio == self.choice.ratio else ""
            rest = f"{row.kl:>7.3f}{row.share:>10.1%}{row.first_token_ratio:>8.3f}{mark}"
            lines.append(f"  {row.ratio:<7g}{row.interval:<24}{rest}")
        if self.skipped_questions:
            lines.append(f"{self.skipped_questions} more questions share no word with any chunk, and were left out")
        lines.append(self._conclusion())
        if self.written_to is not None:
            use = "reuse nothing" if self.choice.is_exact else "use it"
            lines.append(f"engines with this store_dir {use} from now on ({self.written_to})")
        return "\n".join(lines)

    def _conclusion(self) -> str:
        choice = self.choice
        if not choice.is_exact:
            return f"ratio {choice.ratio:g} is the least that reaches {self.target:g} at the lower end of its interval"
        mean = f"; the mean reaches it at {choice.by_mean:g}" if choice.by_mean < choice.ratio else ""
        best = max(self.ratios, key=lambda row: row.agreement_low)
        reached = math.floor(1000 * best.agreement_low) / 1000
        lower = f"a --target of at most {reached:g}" if reached > 0 else "a lower --target"
        return (
            f"nothing below ratio 1 meets the target: no ratio reaches {self.target:g} at the lower end of its "
            f"interval{mean}. Ratio 1 it is, which is exact and reuses nothing. The best, ratio {best.ratio:g}, agrees "
            f"in {best.interval}: {lower} would choose one below 1, and more --samples narrow the intervals"
        )


class CalibrationNotKept(StoreError):  # noqa: N818
    """The choice was made and could not be written; `result` holds it."""

    def __init__(self, result: CalibrationResult, folder: Path, reason: object) -> None:
        super().__init__(
            f"the choice could not be written into {folder} ({reason}): set policy={result.policy!r} and "
            f"recompute_ratio={result.choice.ratio:g} by hand, or make room there and calibrate again"
        )
        self.result = result
