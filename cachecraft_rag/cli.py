"""The command `cachecraft`. Thin: options in, one call, exit code out."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cachecraft_rag.cli_store import store_app
from cachecraft_rag.errors import CachecraftError, InvalidInput

INEXACT = 1
FAILED = 2
# For this process and the engine's: vLLM and torch say a lot while they start.
_QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore::FutureWarning"}


class _Commands(TyperGroup):
    """Errors raised on purpose become one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        try:
            return super().invoke(ctx)
        except CachecraftError as error:
            typer.secho(f"error: {' '.join(str(error).split())}", fg=typer.colors.RED, err=True)
            raise typer.Exit(FAILED) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    help="Retrieval-augmented generation on vLLM with the KV caches of chunks reused at any position.",
)
bench_app = typer.Typer(no_args_is_help=True, help="Measure on this machine.")
app.add_typer(bench_app, name="bench")
app.add_typer(store_app, name="store")


def _output(path: Path | None) -> Path | None:
    """Checked before anything is computed."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise InvalidInput(f"{path} cannot be written: give a file in a folder that exists")
    return path


Model = Annotated[str, typer.Option(help="Hugging Face name or folder, or a packaged model such as smollm2-135m.")]
Docs = Annotated[Path, typer.Option(help="Folder of .md and .txt files.")]
DType = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16; auto takes what the machine can do.")]
Policy = Annotated[
    str | None, typer.Option(help="Which tokens of reused chunks are recomputed: none, all, first, random, question.")
]
Ratio = Annotated[float | None, typer.Option(help="How large a share of them: 0 is naive reuse, 1 is exact.")]
Count = Annotated[int, typer.Option("--k", "-k", min=1, help="Chunks retrieved for each question.")]
Json = Annotated[Path | None, typer.Option("--json", callback=_output, help="Write the results to this file.")]
Html = Annotated[Path | None, typer.Option("--html", callback=_output, help="Write answers and reports to this page.")]


@app.command()
def demo(
    docs: Annotated[
        Path | None, typer.Option(help="Folder of .md and .txt files; without it the handbook of an imaginary buoy.")
    ] = None,
    question: Annotated[
        list[str] | None, typer.Option("--question", "-q", help="What to ask; may be given several times.")
    ] = None,
    model: Model = "smollm2-135m",
    k: Count = 8,
    dtype: DType = "auto",
    ratio: Ratio = None,
    policy: Policy = None,
    json_file: Json = None,
    html_file: Html = None,
) -> None:
    """Documents in, questions answered, time to first token beside plain vLLM."""
    from cachecraft_rag.demo.questions import Question
    from cachecraft_rag.demo.run import Setup, run_demo

    if docs is not None and not question and not sys.stdin.isatty():
        raise InvalidInput(f"nothing to ask about {docs}: give --question, or start it in a terminal")
    run_demo(
        Setup(docs, model, dtype, policy, ratio, k, json_file, html_file),
        [Question(text) for text in question or ()],
        ask_user=lambda: str(typer.prompt("\nQuestion (empty to end)", default="", show_default=False)),
    )


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question.")],
    docs: Docs,
    model: Model = "smollm2-135m",
    k: Count = 8,
    dtype: DType = "auto",
    ratio: Ratio = None,
    policy: Policy = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 128,
    prewarm: Annotated[
        bool, typer.Option(help="Store all chunks first; else all of the question's are misses.")
    ] = True,
    json_file: Json = None,
    html_file: Html = None,
) -> None:
    """Ingest a folder, ask one question, print the answer and its report."""
    from cachecraft_rag.demo.run import Setup, ask_once

    setup = Setup(docs, model, dtype, policy, ratio, k, json_file, html_file)
    ask_once(setup, docs, question, prewarm=prewarm, max_tokens=max_tokens)


@app.command()
def prewarm(
    docs: Annotated[Path | None, typer.Option(help="Folder of .md and .txt files.")] = None,
    jsonl: Annotated[
        Path | None, typer.Option(help="Instead: JSON lines with `text` and, if any, `document_id`.")
    ] = None,
    store_dir: Annotated[
        Path | None,
        typer.Option(help="Folder that keeps the caches for every later process; made where there is none."),
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="The tenant that they are for.")] = None,
    model: Model = "smollm2-135m",
    dtype: DType = "auto",
    json_file: Json = None,
) -> None:
    """Compute the caches of documents once, into a folder. What is there already is not computed again.

    Without --store-dir it says what would be stored, how large, how long, and what is refused.
    """
    from cachecraft_rag.demo.run import Setup, prewarm_documents

    if (docs is None) == (jsonl is None):
        raise InvalidInput("give --docs DIR or --jsonl FILE, one of them")
    setup = Setup(docs, model, dtype, json_file=json_file, store_dir=store_dir, namespace=namespace)
    prewarm_documents(setup, jsonl)


@app.command()
def verify(
    model: Annotated[str, typer.Argument(help="Hugging Face name or folder, or a packaged model.")],
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    json_file: Json = None,
) -> None:
    """Prove that ratio 1.0 equals plain vLLM for a model on this machine; exit code 1 where it does not."""
    from cachecraft_rag.demo.defaults import model_folder
    from cachecraft_rag.verify import verify_model

    result = verify_model(model_folder(model), dtype=dtype, progress=sys.stderr.isatty())
    _finish(result, json_file)
    if not result.exact:
        raise typer.Exit(INEXACT)


@bench_app.command()
def speed(
    model: Model = "smollm2-135m",
    chunks: Annotated[int, typer.Option(min=1, help="Chunks in the prompt.")] = 8,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 512,
    ratio: Annotated[float, typer.Option(help="Share of the reused tokens that is recomputed.")] = 0.15,
    policy: Annotated[str, typer.Option(help="Which of them: none, all, first, random, question.")] = "first",
    repetitions: Annotated[int, typer.Option(min=1, help="Measured orders of the chunks, after a warm-up.")] = 5,
    dtype: DType = "auto",
    json_file: Json = None,
) -> None:
    """Time to first token over chunks in changing orders, beside plain vLLM with and without prefix caching."""
    from cachecraft_rag.bench.speed import bench_speed
    from cachecraft_rag.demo.defaults import fitting_dtype, model_folder

    result = bench_speed(
        model_folder(model),
        chunks=chunks,
        chunk_tokens=chunk_tokens,
        ratio=ratio,
        policy=policy,
        repetitions=repetitions,
        dtype=fitting_dtype(dtype),
        progress=sys.stderr.isatty(),
    )
    _finish(result, json_file)


@bench_app.command()
def eviction(
    passages: Annotated[Path | None, typer.Option(help="JSON lines with `text`: retrieve from these, too.")] = None,
    questions: Annotated[Path | None, typer.Option(help="JSON lines with `question`, for the passages.")] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Chunks retrieved for each question.")] = 5,
    json_file: Json = None,
) -> None:
    """Hit rates of eviction policies over streams of questions; needs no model."""
    from cachecraft_rag.bench.eviction import bench_eviction
    from cachecraft_rag.bench.streams import retrieved, skewed

    if (passages is None) != (questions is None):
        raise InvalidInput("give --passages and --questions together")
    streams = [skewed(3000, 500, k, drift=drift) for drift in (False, True)]
    if passages is not None and questions is not None:
        streams += [retrieved(passages, questions, k, shuffled=shuffled) for shuffled in (False, True)]
    _finish(bench_eviction(streams), json_file)


@bench_app.command()
def tiers(
    model: Model = "smollm2-135m",
    chunks: Annotated[int, typer.Option(min=1, help="Chunks in the prompt.")] = 8,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 512,
    repetitions: Annotated[int, typer.Option(min=1, help="Measured rounds.")] = 3,
    dtype: DType = "auto",
    json_file: Json = None,
) -> None:
    """Time to first token with the chunks in memory, on disk, and on a disk that has to be read."""
    from cachecraft_rag.bench.tiers import bench_tiers
    from cachecraft_rag.demo.defaults import fitting_dtype, model_folder

    result = bench_tiers(
        model_folder(model),
        chunks=chunks,
        chunk_tokens=chunk_tokens,
        repetitions=repetitions,
        dtype=fitting_dtype(dtype),
    )
    _finish(result, json_file)


@bench_app.command()
def soak(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long.")] = 30.0,
    fault_seconds: Annotated[float, typer.Option(min=0.1, help="From one fault to the next, on average.")] = 4.0,
    model: Model = "smollm2-135m",
    json_file: Json = None,
) -> None:
    """Random valid traffic under random faults of files and disk; exit code 1 where an answer was wrong."""
    from cachecraft_rag.bench.soak import bench_soak
    from cachecraft_rag.demo.defaults import model_folder

    result = bench_soak(model_folder(model), minutes=minutes, fault_seconds=fault_seconds)
    _finish(result, json_file)
    if not result.passed:
        raise typer.Exit(INEXACT)


def _finish(result: Any, json_file: Path | None) -> None:
    typer.echo(str(result))
    if json_file is not None:
        json_file.write_text(json.dumps(result.to_dict(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    app()
