"""What `bench.soak` saw, as JSON and as text."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """Of the engine process, while traffic runs: resident bytes, open files."""

    second: float
    resident_bytes: int
    open_files: int


@dataclass
class SoakResult:
    """`compared`, `wrong`: answers held against a reference, and those that differ; `reasons`: why chunks were refused.

    `cache_usage`: share of vLLM's KV blocks in use when all was done; `books`: faults in the engine's books;
    `damaged`: files that were found damaged after the engine had closed, all of them harmed on purpose and not read
    since; `left_after_repair`: what `store check` finds when these were removed.
    """

    model: str
    minutes: float
    actions: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    compared: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    cache_usage: float = 0.0
    books: list[str] = field(default_factory=list)
    damaged: int = 0
    left_after_repair: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not (self.wrong or self.errors or self.books or self.left_after_repair or self.cache_usage)

    @property
    def growth_bytes(self) -> float:
        """Resident memory in the last quarter, on average, less that in the second quarter."""
        quarter = len(self.samples) // 4
        if quarter == 0:
            return 0.0
        early, late = self.samples[quarter : 2 * quarter], self.samples[-quarter:]
        return (sum(s.resident_bytes for s in late) - sum(s.resident_bytes for s in early)) / quarter

    def to_dict(self) -> dict[str, Any]:
        counters = {
            name: dict(getattr(self, name)) for name in ("actions", "faults", "outcomes", "reasons", "compared")
        }
        return {
            "model": self.model,
            "minutes": self.minutes,
            **counters,
            "wrong": self.wrong,
            "errors": self.errors,
            "samples": [[s.second, s.resident_bytes, s.open_files] for s in self.samples],
            "growth_bytes": self.growth_bytes,
            "cache_usage": self.cache_usage,
            "books": self.books,
            "damaged": self.damaged,
            "left_after_repair": self.left_after_repair,
            "passed": self.passed,
        }

    def __str__(self) -> str:
        def counts(counter: Counter[str]) -> str:
            return ", ".join(f"{count:,} {name}" for name, count in counter.most_common())

        files = [sample.open_files for sample in self.samples]
        memory = [sample.resident_bytes / (1 << 20) for sample in self.samples]
        lines = [
            f"{self.minutes:g} minutes, {self.model}",
            f"actions    {self.actions.total():,}: {counts(self.actions)}",
            f"chunks     {counts(self.outcomes)}",
            f"faults     {self.faults.total():,}: {counts(self.faults)}",
            f"refused    {counts(self.reasons)}",
            f"compared   {self.compared.total():,}: {counts(self.compared)}; {len(self.wrong)} wrong",
            f"errors     {len(self.errors)}; faults in the books {len(self.books)}",
            f"blocks     {self.cache_usage:.1%} of vLLM's KV cache in use at the end",
            f"store      {self.damaged} damaged files unread at the end, {len(self.left_after_repair)} after repair",
        ]
        if self.samples:
            lines.append(
                f"memory     {memory[0]:,.0f} MiB at first, {memory[-1]:,.0f} at last, at most {max(memory):,.0f}; "
                f"second to last quarter {self.growth_bytes / (1 << 20):+,.1f}; open files {files[0]} to {files[-1]}"
            )
        return "\n".join([*lines, *self.wrong, *self.errors, *self.books, *self.left_after_repair])
