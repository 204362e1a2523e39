"""Questions about chunks, written by the model itself or by the user."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from cachecraft_rag.bench.quality.in_flight import in_flight
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import ChunkPrompt

MOST_TOKENS = 48  # of a question that the model writes
_ASKED = "Write one short question that this text answers. Reply with the question alone."
# A bullet, a number or the word "question", the last two with a delimiter, which is none before a digit ("3.5").
_LABEL = re.compile(
    r"^(?:[-*•\s]+(?!\d)|\s*\d{1,2}[.):](?!\d)|\s*(?:the )?question\s*(?:\d+\s*)?[:：])+", re.IGNORECASE
)
_END = re.compile("[?？؟]")
_TOGETHER = 32
_FIRST_WORDS = 8
_MOST_CHARACTERS = 80  # of them, since not all scripts have spaces


def load_questions(path: Path) -> list[str]:
    """One a line; empty lines are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"the file of questions {path} cannot be read ({error}): give one question a line"
        ) from error
    questions = [line.strip() for line in lines if line.strip()]
    if not questions:
        raise InvalidInput(f"{path} holds no questions: give one a line")
    return questions


def question_prompt(chunk: Chunk) -> ChunkPrompt:
    return ChunkPrompt.chat([chunk], _ASKED)


def write_questions(engine: ChunkEngine, chunks: Sequence[Chunk]) -> Iterator[tuple[str, str | None]]:
    """For each chunk's id a question that the model writes greedily; None where it wrote nothing of use."""
    starts = (
        (chunk.id, partial(engine.submit, question_prompt(chunk), reuse=False, max_tokens=MOST_TOKENS))
        for chunk in chunks
    )
    for chunk_id, answer in in_flight(starts, _TOGETHER):
        yield chunk_id, read_question(answer.text)


def ask_of_each(chunks: Sequence[Chunk], written: Mapping[str, str | None]) -> dict[str, str]:
    """A question for each chunk's id, about that chunk alone.

    Small models ask of many chunks the same, such as what the text says. Where a question was written for several
    chunks, or none of use, it is asked what is said about the chunk's first words.
    """
    common = Counter(question for question in written.values())
    questions = {}
    for chunk in chunks:
        question = written.get(chunk.id)
        if question is None or common[question] > 1:
            question = opening_question(chunk)
        questions[chunk.id] = question
    return questions


def opening_question(chunk: Chunk) -> str:
    """What is said about the chunk's first words."""
    opening = " ".join(chunk.text.split()[:_FIRST_WORDS])
    return f'What is said about "{opening[:_MOST_CHARACTERS].rstrip()}"?'


def read_question(text: str) -> str | None:
    """What was written, without labels, numbers and quotes; only up to the first question mark where there is one."""
    for line in text.splitlines():
        question = _LABEL.sub("", line.strip().strip("\"'*` ")).strip("\"'*` ")
        if any(character.isalpha() for character in question):
            end = _END.search(question)
            return question if end is None else question[: end.end()]
    return None
