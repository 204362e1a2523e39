"""The work behind `cachecraft demo`, `ask` and `prewarm`: documents in, answers and reports out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.config import DEFAULT_POLICY, EngineConfig
from cachecraft_rag.demo.defaults import (
    CHUNKS_PER_QUESTION,
    MODEL,
    examples_folder,
    fitting_dtype,
    handbook_folder,
    model_folder,
)
from cachecraft_rag.demo.documents import load_folder, load_lines
from cachecraft_rag.demo.questions import Question, load_questions
from cachecraft_rag.reuse import get_policy

if TYPE_CHECKING:
    from rich.console import Console

    from cachecraft_rag.answer import PrewarmReport
    from cachecraft_rag.demo.measure import Comparison, Summary
    from cachecraft_rag.demo.retrieval import Retriever
    from cachecraft_rag.engine import ChunkEngine

AskUser = Callable[[], str]
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Setup:
    """What the commands take. None stands for the engine's own default; `docs` None for the handbook."""

    docs: Path | None = None
    model: str = MODEL
    dtype: str = "auto"
    policy: str | None = None
    ratio: float | None = None
    k: int = CHUNKS_PER_QUESTION
    json_file: Path | None = None
    html_file: Path | None = None
    store_dir: Path | None = None
    namespace: str | None = None
    compress: str | None = None


def run_demo(setup: Setup, questions: Sequence[Question], ask_user: AskUser | None = None) -> Summary | None:
    """Without `questions` those of the handbook are asked, or with other documents what `ask_user` returns, until that
    is empty. Returns None where nothing was asked."""
    from cachecraft_rag.demo import show
    from cachecraft_rag.demo.measure import summarise

    _check_options(setup)
    console = show.make_console()
    docs = setup.docs or handbook_folder()
    if not questions and setup.docs is None:
        questions = load_questions(examples_folder() / "handbook_questions.json")
    chunks = load_folder(docs)
    with _retriever(setup, docs, chunks, console) as retriever:
        # All is retrieved before anything is timed: the embedding model keeps the cores busy for a while.
        found = [retriever.retrieve(question.text, setup.k) for question in questions]
        with started_engine(setup, console) as engine:
            prewarm = prewarm_chunks(engine, chunks, console)
            asked = _later(retriever, setup.k, ask_user) if not questions else zip(questions, found, strict=True)
            comparisons = ask_all(engine, asked, chunks[-setup.k :], console)
            if not comparisons:
                console.print("nothing was asked")
                return None
            summary = summarise(comparisons)
            console.rule("[bold]What it comes to")
            console.print(show.summary_table(summary))
            closing = show.closing_line(summary)
            console.print(f"\n[bold green]{closing}[/]")
            _write(setup, engine, prewarm, comparisons, summary, closing)
    return summary


def ask_once(setup: Setup, docs: Path, question: str, *, prewarm: bool, max_tokens: int) -> None:
    from cachecraft_rag.demo import show
    from cachecraft_rag.demo.measure import make_prompt

    _check_options(setup)
    asked = Question(question)
    console = show.make_console()
    chunks = load_folder(docs)
    with _retriever(setup, docs, chunks, console) as retriever:
        found = retriever.retrieve(asked.text, setup.k)
    with started_engine(setup, console) as engine:
        if prewarm:
            prewarm_chunks(engine, chunks, console)
        answer = engine.generate(make_prompt(found, asked.text), max_tokens=max_tokens)
    console.print(show.answer_panel(asked.text, answer))
    assert answer.report is not None
    console.print(answer.report.table())
    if setup.json_file is not None:
        _write_json(setup.json_file, {"question": asked.text, "answer": answer.text, "report": answer.report.to_dict()})
    if setup.html_file is not None:
        page = show.page(asked.text, f"{docs}, {setup.model}", [(asked.text, answer.text, answer.report)])
        setup.html_file.write_text(page, encoding="utf-8")


def prewarm_documents(setup: Setup, jsonl: Path | None = None) -> None:
    """Of the folder `setup.docs`, or of the lines of `jsonl`."""
    from cachecraft_rag.demo import show

    _check_options(setup)
    console = show.make_console()
    source = jsonl or setup.docs or handbook_folder()
    chunks = load_lines(source) if jsonl is not None else load_folder(source)
    _say_loaded(source, chunks, console)
    with started_engine(setup, console) as engine:
        report = prewarm_chunks(engine, chunks, console)
        stats = engine.stats()
    if setup.json_file is not None:
        _write_json(
            setup.json_file,
            {
                "stored": list(report.stored),
                "present": list(report.present),
                "refused": dict(report.refused),
                "tokens": report.tokens,
                "seconds": report.seconds,
                "store": stats,
            },
        )


def ask_all(
    engine: ChunkEngine,
    asked: Iterable[tuple[Question, Sequence[Chunk]]],
    warm_up_chunks: Sequence[Chunk],
    console: Console,
) -> list[Comparison]:
    """Ask and print one after the other, behind a warm-up."""
    from cachecraft_rag.demo import measure, show

    with console.status("warming up"):
        measure.warm_up(engine, warm_up_chunks)
    comparisons: list[Comparison] = []
    for turn, (question, chunks) in enumerate(asked):
        if turn == 0:
            console.rule("[bold]Questions")
        with console.status("answering"):
            comparison = measure.compare(engine, question, chunks, turn=turn)
        console.print()
        console.print(show.answer_panel(question.text, comparison.ours, show.verdict(comparison)))
        console.print(comparison.report.table())
        comparisons.append(comparison)
    return comparisons


@contextmanager
def started_engine(setup: Setup, console: Console) -> Iterator[ChunkEngine]:
    from cachecraft_rag.engine import ChunkEngine

    options = {**_options(setup), "dtype": fitting_dtype(setup.dtype), "vllm_args": {"use_tqdm_on_load": False}}
    folder = model_folder(setup.model)
    with console.status(f"starting vLLM with {setup.model}"):
        engine = ChunkEngine(folder, **options)
    with engine:
        console.print(
            f"vLLM runs {setup.model} in {engine.dtype}; policy {engine.policy} at ratio {engine.recompute_ratio:g}",
            highlight=False,
        )
        yield engine


def prewarm_chunks(engine: ChunkEngine, chunks: Sequence[Chunk], console: Console) -> PrewarmReport:
    report = engine.prewarm(chunks, progress=console.is_terminal)
    stats = engine.stats()
    used, capacity = stats["used_bytes"], stats["capacity_bytes"]
    console.print(f"prewarmed: {report}", highlight=False, markup=False)
    console.print(f"memory holds {used / _GIB:.2f} of {capacity / _GIB:.2f} GiB", highlight=False)
    if engine.config.store_dir is not None:
        disk = stats["disk_bytes"] / _GIB
        console.print(
            f"{engine.config.store_dir} holds {disk:.2f} of {engine.config.disk_store_gb:.2f} GiB", highlight=False
        )
    if stats.get("evicted"):
        console.print(f"[yellow]{stats['evicted']} chunks had to leave again: set CACHECRAFT_CPU_STORE_GB to more[/]")
    return report


def _options(setup: Setup) -> dict[str, Any]:
    given = {
        "dtype": setup.dtype,
        "policy": setup.policy,
        "recompute_ratio": setup.ratio,
        "store_dir": setup.store_dir,
        "namespace": setup.namespace,
        "compress": setup.compress,
    }
    return {name: value for name, value in given.items() if value is not None}


def _check_options(setup: Setup) -> None:
    """Raises for what the engine would refuse, before anything slow is done."""
    get_policy(EngineConfig(setup.model, **_options(setup)).policy or DEFAULT_POLICY)


@contextmanager
def _retriever(setup: Setup, docs: Path, chunks: Sequence[Chunk], console: Console) -> Iterator[Retriever]:
    from cachecraft_rag.demo.retrieval import Retriever, SentenceEmbedder

    _say_loaded(docs, chunks, console)
    with console.status("loading the embedding model"):
        embedder = SentenceEmbedder()
    with Retriever(embedder) as retriever:
        retriever.add(chunks, progress=console.is_terminal)
        yield retriever


def _say_loaded(docs: Path, chunks: Sequence[Chunk], console: Console) -> None:
    console.rule("[bold]Documents")
    documents = len({chunk.document_id for chunk in chunks})
    words = sum(len(chunk.text.split()) for chunk in chunks)
    console.print(f"{docs}: {documents} documents, {len(chunks)} chunks, {words:,} words", highlight=False)


def _later(retriever: Retriever, k: int, ask_user: AskUser | None) -> Iterator[tuple[Question, Sequence[Chunk]]]:
    while ask_user is not None and (text := ask_user().strip()):
        yield Question(text), retriever.retrieve(text, k)


def _write(
    setup: Setup,
    engine: ChunkEngine,
    prewarm: PrewarmReport,
    comparisons: Sequence[Comparison],
    summary: Summary,
    closing: str,
) -> None:
    from cachecraft_rag.demo import show

    if setup.json_file is not None:
        content = {
            "model": setup.model,
            "dtype": engine.dtype,
            "policy": engine.policy,
            "ratio": engine.recompute_ratio,
            "prewarm": {"chunks": len(prewarm.stored), "tokens": prewarm.tokens, "seconds": prewarm.seconds},
            "summary": summary.to_dict(),
            "questions": [comparison.to_dict() for comparison in comparisons],
        }
        _write_json(setup.json_file, content)
    if setup.html_file is not None:
        answers = [(one.question.text, one.ours.text, one.report) for one in comparisons]
        setup.html_file.write_text(show.page("cachecraft demo", closing, answers), encoding="utf-8")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
