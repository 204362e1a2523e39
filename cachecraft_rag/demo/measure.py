"""One question answered in three ways by one engine, and what all questions together say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cachecraft_rag.answer import Answer
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.demo.questions import Question
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.report import RequestReport

WARM_UP_QUESTION = "What is this about?"
_TASK = "Answer in one sentence with the facts from the text above.\nQuestion: {question}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`cached`: plain vLLM with prefix caching, its first token only. `plain`: plain vLLM that finds nothing there."""

    question: Question
    ours: Answer
    cached: Answer
    plain: Answer

    @property
    def report(self) -> RequestReport:
        assert self.ours.report is not None
        return self.ours.report

    @property
    def right(self) -> bool | None:
        return self.question.is_right(self.ours.text)

    @property
    def plain_right(self) -> bool | None:
        return self.question.is_right(self.plain.text)

    @property
    def same_text(self) -> bool:
        return self.ours.text.strip() == self.plain.text.strip()

    def to_dict(self) -> dict[str, Any]:
        return {
            "question": self.question.text,
            "expects": list(self.question.expects),
            "answer": self.ours.text,
            "plain_answer": self.plain.text,
            "right": self.right,
            "plain_right": self.plain_right,
            "same_text": self.same_text,
            "first_token_seconds": {
                "ours": self.ours.first_token_seconds,
                "plain_prefix_caching": self.cached.first_token_seconds,
                "plain": self.plain.first_token_seconds,
            },
            "report": self.report.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class Summary:
    """Medians over all questions, in seconds. `returned`: chunks in more than one prompt; `moved`: of these, those at
    different positions. The counts of right answers are over the `judged` questions, which say what they expect."""

    questions: int
    judged: int
    right: int
    plain_right: int
    same_text: int
    ours: float
    plain_prefix_caching: float
    plain: float
    share_computed: float
    returned: int
    moved: int

    @property
    def speedup_vs_plain(self) -> float:
        return self.plain / self.ours

    @property
    def speedup_vs_prefix_cache(self) -> float:
        return self.plain_prefix_caching / self.ours

    def to_dict(self) -> dict[str, Any]:
        return {
            "questions": self.questions,
            "judged": self.judged,
            "right": self.right,
            "plain_right": self.plain_right,
            "same_text": self.same_text,
            "median_first_token_seconds": {
                "ours": self.ours,
                "plain_prefix_caching": self.plain_prefix_caching,
                "plain": self.plain,
            },
            "speedup_vs_plain": self.speedup_vs_plain,
            "speedup_vs_prefix_cache": self.speedup_vs_prefix_cache,
            "share_computed": self.share_computed,
            "chunks_returned": self.returned,
            "chunks_moved": self.moved,
        }


def make_prompt(chunks: Sequence[Chunk], question: str) -> ChunkPrompt:
    """The best chunk stands last, next to the question, where small models make most of it."""
    return ChunkPrompt.chat(list(reversed(chunks)), _TASK.format(question=question))


def warm_up(engine: ChunkEngine, chunks: Sequence[Chunk]) -> None:
    """One request of each kind; the first ones of an engine are slow."""
    prompt = make_prompt(chunks, WARM_UP_QUESTION)
    engine.generate(prompt, max_tokens=2)
    engine.generate(prompt, max_tokens=2, reuse=False, fresh=True)


def compare(
    engine: ChunkEngine, question: Question, chunks: Sequence[Chunk], *, turn: int = 0, max_tokens: int = 48
) -> Comparison:
    """Ask in three ways, one after the other; `turn` says which comes first, so that none is always the first."""
    prompt = make_prompt(chunks, question.text)
    ways: dict[str, Callable[[], Answer]] = {
        "ours": lambda: engine.generate(prompt, max_tokens=max_tokens),
        "cached": lambda: engine.generate(prompt, max_tokens=1, reuse=False),
        "plain": lambda: engine.generate(prompt, max_tokens=max_tokens, reuse=False, fresh=True),
    }
    names = list(ways)
    names = names[turn % len(names) :] + names[: turn % len(names)]
    answers = {name: ways[name]() for name in names}
    return Comparison(question, **answers)


def summarise(comparisons: Sequence[Comparison]) -> Summary:
    judged = [comparison for comparison in comparisons if comparison.right is not None]
    offsets: dict[str, list[int]] = {}
    for comparison in comparisons:
        for chunk in comparison.report.chunks:
            offsets.setdefault(chunk.chunk_id, []).append(chunk.offset)
    returned = [places for places in offsets.values() if len(places) > 1]
    return Summary(
        questions=len(comparisons),
        judged=len(judged),
        right=sum(bool(comparison.right) for comparison in judged),
        plain_right=sum(bool(comparison.plain_right) for comparison in judged),
        same_text=sum(comparison.same_text for comparison in comparisons),
        ours=median(comparison.ours.first_token_seconds for comparison in comparisons),
        plain_prefix_caching=median(comparison.cached.first_token_seconds for comparison in comparisons),
        plain=median(comparison.plain.first_token_seconds for comparison in comparisons),
        share_computed=median(comparison.report.share_computed for comparison in comparisons),
        returned=len(returned),
        moved=sum(len(set(places)) > 1 for places in returned),
    )
