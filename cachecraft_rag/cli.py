"""The command `cachecraft`. Thin: options in, one call, exit code out."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cachecraft_rag.cli_bench import bench_app
from cachecraft_rag.cli_calibrate import calibrate_app
from cachecraft_rag.cli_options import INEXACT, Compress, Count, Docs, DType, Html, Json, Model, Policy, Ratio, finish
from cachecraft_rag.cli_store import store_app
from cachecraft_rag.errors import CachecraftError, InvalidInput

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
app.add_typer(bench_app, name="bench")
app.add_typer(store_app, name="store")
app.add_typer(calibrate_app)


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
    compress: Compress = None,
    json_file: Json = None,
) -> None:
    """Compute the caches of documents once, into a folder. What is there already is not computed again.

    Without a folder (--store-dir or CACHECRAFT_STORE_DIR) they are computed, reported and forgotten.
    """
    from cachecraft_rag.demo.run import Setup, prewarm_documents

    if (docs is None) == (jsonl is None):
        raise InvalidInput("give --docs DIR or --jsonl FILE, one of them")
    setup = Setup(docs, model, dtype, json_file=json_file, store_dir=store_dir, namespace=namespace, compress=compress)
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
    finish(result, json_file)
    if not result.exact:
        raise typer.Exit(INEXACT)


if __name__ == "__main__":
    app()
