"""Questions, and how their answers are judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cachecraft_rag.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Question:
    """An answer is right if it holds one of `expects`; without them nobody can tell."""

    text: str
    expects: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InvalidInput(f"the question {self.text!r} is empty: ask something")

    def is_right(self, answer: str) -> bool | None:
        if not self.expects:
            return None
        folded = " ".join(answer.casefold().split())
        return any(expected.casefold() in folded for expected in self.expects)


def load_questions(path: Path) -> list[Question]:
    """Reads a JSON list of {"question": str, "expects": [str, ...]}; "expects" may be absent."""
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"the file of questions {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidInput(f"the file of questions {path} is not JSON: {error}") from error
    if not isinstance(lines, list) or not lines:
        raise InvalidInput(f'{path} holds no list of questions: it must be like [{{"question": "...", "expects": []}}]')
    return [_question(path, line) for line in lines]


def _question(path: Path, line: object) -> Question:
    expects = line.get("expects", []) if isinstance(line, Mapping) else None
    text = line.get("question") if isinstance(line, Mapping) else None
    if not isinstance(text, str) or not isinstance(expects, list) or not all(isinstance(e, str) for e in expects):
        raise InvalidInput(f'{path}: {line!r:.120} is not like {{"question": "...", "expects": ["..."]}}')
    return Question(text, tuple(expects))
