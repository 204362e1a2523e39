"""What was measured so far, one line for each question and variant, so that an interrupted run can go on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from cachecraft_rag.bench.quality.strict import strict
from cachecraft_rag.bench.quality.variants import PLAIN, Variant

Seconds = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class Record:
    """One question answered in one way.

    `kl`: divergence from full prefill's next-token distribution in nats and `agrees`: whether the best token is the
    same, at each token of full prefill's answer. `share`: rows the model ran for the context, over its tokens.
    Seconds are TTFT of a request that had the engine to itself; `full_seconds` full prefill's of the same question in
    the same process. Both None where it was not timed.
    """

    answer: str
    token_ids: tuple[int, ...]
    kl: tuple[float, ...]
    agrees: tuple[bool, ...]
    share: float
    seconds: Seconds | None
    full_seconds: Seconds | None

    @property
    def first_token_ratio(self) -> float | None:
        """TTFT over full prefill's."""
        return None if self.seconds is None or self.full_seconds is None else self.seconds / self.full_seconds


class Records:
    """Append-only: of two lines for the same the later counts, so that a TTFT can be added.

    Lines of other runs (another model, prompt, ...), a line cut short and one that is no record are passed over.
    """

    def __init__(self, path: Path | None, run: str, reusing_run: str | None = None) -> None:
        """`path` None keeps all in memory. `run`: digest of all but question and variant that a record depends on.

        `reusing_run`: that of the ways that reuse stored KV, where it depends on more.
        """
        self._path = path
        self._plain_run = run
        self._reusing_run = run if reusing_run is None else reusing_run
        self._found: dict[tuple[str, str, str], Record] = {}
        if path is not None and path.exists():
            for line in path.read_bytes().split(b"\n"):  # answers may hold what str.splitlines() takes for line ends
                self._read(line)

    def get(self, question: str, variant: Variant) -> Record | None:
        """`question`: its digest."""
        return self._found.get((self._run(variant), question, str(variant)))

    def add(self, question: str, variant: Variant, record: Record) -> None:
        run = self._run(variant)
        self._found[run, question, str(variant)] = record
        if self._path is None:
            return
        line = {"run": run, "question": question, "variant": str(variant), **asdict(record)}
        with self._path.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def _read(self, line: bytes) -> None:
        try:
            found = _LINES.validate_json(line)
        except ValueError:
            return
        if found.run in (self._plain_run, self._reusing_run) and len(found.kl) == len(found.agrees) > 0:
            record = Record(**{field.name: getattr(found, field.name) for field in fields(Record)})
            self._found[found.run, found.question, found.variant] = record

    def _run(self, variant: Variant) -> str:
        return self._plain_run if variant in PLAIN else self._reusing_run


@strict
@dataclass(frozen=True, slots=True)
class _Line(Record):
    run: str
    question: str
    variant: str


_LINES = TypeAdapter(_Line)
