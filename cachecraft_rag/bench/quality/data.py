"""Questions with the passages that are retrieved for them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

from cachecraft_rag.chunk import Chunk, check_text
from cachecraft_rag.errors import InvalidInput

T = TypeVar("T")
_FORM = "question (text), answers (list of texts) and passages (list of objects with title and text)"


@dataclass(frozen=True, slots=True)
class Passage:
    title: str
    text: str

    @property
    def chunk(self) -> Chunk:
        return Chunk(f"{self.title}\n{self.text}" if self.title else self.text)


@dataclass(frozen=True, slots=True)
class Question:
    """`passages` in the order in which they stand in the prompt; `answers` are the gold ones, any of which counts."""

    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """From one line of a data set; `InvalidInput` says what is wrong with it.

        A passage that is there twice is kept once.
        """
        different = {passage.chunk.id: passage for passage in passages_of(fields)}
        return cls(text_of(fields, "question"), answers_of(fields), tuple(different.values()))

    @property
    def chunks(self) -> list[Chunk]:
        return [passage.chunk for passage in self.passages]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def digest(self) -> str:
        """sha256 (hex) of all of it, the order of the passages included."""
        return hashlib.sha256(json.dumps(self.to_dict(), ensure_ascii=False).encode()).hexdigest()


def load_questions(path: Path, *, limit: int | None = None, seed: int = 0) -> list[Question]:
    """The first `limit` questions of a JSON Lines file, each with its passages in an order drawn with `seed`."""
    try:
        first = None if limit is None else max(limit, 0)
        lines = islice(read_lines(path, Question.from_dict, _FORM), first)
        questions = [shuffled(question, seed) for question in lines]
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}); give a JSON Lines file") from error
    if not questions:
        raise InvalidInput(f"{path} with limit={limit} has no questions; give a JSON Lines file, one question a line")
    return questions


def shuffled(question: Question, seed: int) -> Question:
    """The same order for the same question and seed, wherever it stands in a data set."""
    passages = list(question.passages)
    random.Random(f"{seed} {question.question}").shuffle(passages)
    return replace(question, passages=tuple(passages))


def save_questions(path: Path, questions: Iterable[Question]) -> None:
    """As JSON Lines, which `load_questions` reads."""
    lines = (json.dumps(question.to_dict(), ensure_ascii=False) + "\n" for question in questions)
    path.write_text("".join(lines), encoding="utf-8")


def read_lines(path: Path, parse: Callable[[Mapping[str, Any]], T], form: str) -> Iterator[T]:
    """What `parse` makes of each object of a JSON Lines file; blank lines are passed over.

    `InvalidInput` names a line that is no such object, or that `parse` raised ValueError for; `form`: the fields of an
    object. Raises OSError where there is no such file.
    """
    with path.open("rb") as lines:  # as text, one wrong byte would fail without the number of its line
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                fields = json.loads(line.decode())
                if not isinstance(fields, dict):
                    raise ValueError("this is no object")
                parsed = parse(fields)
            except (ValueError, RecursionError) as error:
                raise InvalidInput(
                    f"{path}, line {number}: {_reason(error)}; a line must be an object with {form}"
                ) from error
            yield parsed


def text_of(fields: Mapping[str, Any], name: str) -> str:
    """The field of that name; `InvalidInput` where it is missing or no text."""
    if name not in fields:
        raise InvalidInput(f"{name} is missing")
    return check_text(fields[name], name)


def answers_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(check_text(answer, "an answer") for answer in _list_of(fields, "answers"))


def passages_of(fields: Mapping[str, Any]) -> list[Passage]:
    """A passage may have no title, which is as an empty one."""
    passages = _list_of(fields, "passages")
    if not all(isinstance(passage, Mapping) for passage in passages):
        raise InvalidInput("a passage is no object")
    return [Passage(text_of({"title": "", **passage}, "title"), text_of(passage, "text")) for passage in passages]


def _list_of(fields: Mapping[str, Any], name: str) -> list[Any]:
    """The field of that name; `InvalidInput` where it is missing, no list, or empty."""
    values = fields.get(name)
    if not isinstance(values, list) or not values:
        raise InvalidInput(f"{name} must be a list that is not empty, got {values!r:.80}")
    return values


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.object[error.start]:#04x} is not UTF-8"
    if isinstance(error, json.JSONDecodeError):
        return f"this is not JSON ({error.msg}, column {error.colno})"
    return str(error)
