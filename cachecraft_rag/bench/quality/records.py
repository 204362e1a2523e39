"""What was measured so far, one line for each question and variant, so that an interrupted run can go on."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cachecraft_rag.bench.quality.variants import PLAIN, Variant

_KEY = ("run", "question", "variant")
_LISTS = ("token_ids", "kl", "agrees")


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
    seconds: float | None
    full_seconds: float | None

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
        fields = {"run": run, "question": question, "variant": str(variant), **asdict(record)}
        with self._path.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(fields, ensure_ascii=False).encode() + b"\n")

    def _read(self, line: bytes) -> None:
        try:
            fields: dict[str, Any] = json.loads(line.decode())
            if not _is_record(fields):
                return
            run, question, variant = (fields.pop(name) for name in _KEY)
            record = Record(**{**fields, **{name: tuple(fields[name]) for name in _LISTS}})
        except (ValueError, KeyError, TypeError, RecursionError):
            return
        if run in (self._plain_run, self._reusing_run):
            self._found[run, question, variant] = record

    def _run(self, variant: Variant) -> str:
        return self._plain_run if variant in PLAIN else self._reusing_run


def is_number(value: object) -> bool:
    """A finite number of JSON, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_record(fields: Mapping[str, Any]) -> bool:
    """Whether the fields are of their types; KeyError or TypeError where there are none."""
    return (
        all(isinstance(fields[name], str) for name in (*_KEY, "answer"))
        and all(isinstance(fields[name], list) for name in _LISTS)
        and all(type(token) is int for token in fields["token_ids"])
        and all(map(is_number, [*fields["kl"], fields["share"]]))
        and all(isinstance(agrees, bool) for agrees in fields["agrees"])
        and len(fields["kl"]) == len(fields["agrees"]) > 0
        and all(_is_seconds(fields[name]) for name in ("seconds", "full_seconds"))
    )


def _is_seconds(value: Any) -> bool:
    return value is None or (is_number(value) and value > 0)
