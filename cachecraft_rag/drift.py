"""How far answers over reused chunks have drifted from full prefill, and when more must be recomputed."""

from __future__ import annotations

import logging
import random
from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

WINDOW = 50  # samples that decide, the newest
LEAST = 20  # of them that must be there
STEP = 0.05

logger = logging.getLogger(__name__)


class Skipped(StrEnum):
    """Why a picked answer was not compared.

    NOTHING_REUSED: it is full prefill's, since no stored KV went into it; BUSY: another one was being compared at that
    moment.
    """

    NOTHING_REUSED = "nothing_reused"
    SAMPLED = "sampled"
    CONSTRAINED = "constrained"
    ABORTED = "aborted"
    BUSY = "busy"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Sample:
    tokens: int
    agreed: int


class DriftGuard:
    """Counts compared answers, and raises the ratio a step where too few of their tokens agree.

    The ratio never falls by itself. After each step the window begins afresh, so that every step rests on answers at
    the ratio before it.
    """

    def __init__(self, share: float, target: float, ratio: float, *, seed: int = 0) -> None:
        """`share`: of answers that are picked; `target`: least agreement of the window; `ratio`: to begin with."""
        self.ratio = ratio
        self._share = share
        self._target = target
        self._rng = random.Random(seed)
        self._window: deque[_Sample] = deque(maxlen=WINDOW)
        self._samples = self._tokens = self._agreed = self._steps = 0
        self._skipped: Counter[Skipped] = Counter()

    def pick(self) -> bool:
        """Whether the answer of a request that begins now is to be compared."""
        return self._rng.random() < self._share

    def skip(self, reason: Skipped) -> None:
        self._skipped[reason] += 1

    def add(self, ratio: float, tokens: int, agreed: int) -> None:
        """`agreed` of an answer's `tokens` are full prefill's most likely ones; `ratio`: that it was made with."""
        self._samples += 1
        self._tokens += tokens
        self._agreed += agreed
        if ratio != self.ratio:  # from before the last step
            return
        self._window.append(_Sample(tokens, agreed))
        found = self._window_agreement
        if len(self._window) < LEAST or found is None or found >= self._target or self.ratio >= 1.0:
            return
        raised = min(1.0, round(self.ratio + STEP, 6))
        logger.warning(
            "answers agree with full prefill in %.1f%% of their tokens over %d samples, less than drift_target=%g: the "
            "default recompute ratio rises from %g to %g",
            *(100 * found, len(self._window), self._target, self.ratio, raised),
        )
        self.ratio = raised
        self._steps += 1
        self._window.clear()

    def stats(self) -> dict[str, Any]:
        """Plain types. Agreements are None where nothing was compared yet."""
        return {
            "samples": self._samples,
            "tokens": self._tokens,
            "agreed_tokens": self._agreed,
            "agreement": self._agreed / self._tokens if self._tokens else None,
            "window_samples": len(self._window),
            "window_agreement": self._window_agreement,
            "target": self._target,
            "ratio": self.ratio,
            "steps": self._steps,
            "skipped": {reason.value: self._skipped[reason] for reason in Skipped},
        }

    @property
    def _window_agreement(self) -> float | None:
        tokens = sum(sample.tokens for sample in self._window)
        return sum(sample.agreed for sample in self._window) / tokens if tokens else None
