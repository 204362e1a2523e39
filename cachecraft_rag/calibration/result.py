"""What `calibrate` found, as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cachecraft_rag.calibration.choose import Choice


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


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """`answer_tokens`: that were compared; `context_tokens`: mean; `questions`: of the samples, in order;
    `written_to`: None where nothing was kept.
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        heading = (
            f"{self.model} in {self.dtype}, policy {self.policy}: {self.samples} samples of {self.chunks_each} chunks"
        )
        lines = [
            f"{heading}, {self.context_tokens:,.0f} tokens each; {self.answer_tokens:,} answer tokens compared",
            f"  {'ratio':<7}{'tokens agree':<24}{'KL':>7}{'computed':>10}{'TTFT':>8}",
        ]
        for row in self.ratios:
            interval = f"{row.agreement:.3f} [{row.agreement_low:.3f}, {row.agreement_high:.3f}]"
            mark = " <-" if row.ratio == self.choice.ratio else ""
            lines.append(
                f"  {row.ratio:<7g}{interval:<24}{row.kl:>7.3f}{row.share:>10.1%}{row.first_token_ratio:>8.3f}{mark}"
            )
        lines.append(self._conclusion())
        if self.written_to is not None:
            lines.append(f"engines with this store_dir use it from now on ({self.written_to})")
        return "\n".join(lines)

    def _conclusion(self) -> str:
        choice = self.choice
        if choice.is_exact:
            mean = f"; the mean reaches it at {choice.by_mean:g}" if choice.by_mean < choice.ratio else ""
            return (
                f"no ratio reaches {self.target:g} at the lower end of its interval{mean}: ratio 1 it is, which is "
                "exact and reuses nothing. More --samples narrow the intervals, a lower --target asks for less"
            )
        return f"ratio {choice.ratio:g} is the least that reaches {self.target:g} at the lower end of its interval"
