"""Questions with the passages that are retrieved for them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput


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
        """From one line of a data set; KeyError, TypeError and ValueError say what is wrong with it.

        A passage that is there twice is kept once.
        """
        passages = [Passage(str(p.get("title", "")), str(p["text"])) for p in fields["passages"]]
        answers = fields["answers"]
        if not isinstance(answers, list) or not answers or not passages:
            raise ValueError("answers and passages must be lists that are not empty")
        different = {passage.chunk.id: passage for passage in passages}
        return cls(str(fields["question"]), tuple(str(answer) for answer in answers), tuple(different.values()))

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
    questions: list[Question] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if limit is not None and len(questions) >= limit:
                    break
                questions.append(shuffled(_parse(path, number, line), seed))
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


def _parse(path: Path, number: int, line: str) -> Question:
    try:
        return Question.from_dict(json.loads(line))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"{path}, line {number}: {error!r:.100}; a line must be an object with question (text), answers (list of "
            "texts) and passages (list of objects with title and text)"
        ) from error
