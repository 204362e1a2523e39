"""`cachecraft calibrate`: the least recompute ratio that is good enough for a user's own documents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cachecraft_rag.cli_options import Compress, DType, Json, Model, Policy, finish, shares
from cachecraft_rag.config import STORE_DIR_VARIABLE
from cachecraft_rag.errors import InvalidInput

calibrate_app = typer.Typer()


@calibrate_app.command()
def calibrate(
    docs: Annotated[
        list[Path] | None, typer.Option(help="Folder of .md and .txt files; may be given several times.")
    ] = None,
    jsonl: Annotated[Path | None, typer.Option(help="Instead: JSON lines with `text`.")] = None,
    questions: Annotated[
        Path | None, typer.Option(help="Questions, one a line; without them the model writes some.")
    ] = None,
    model: Model = "smollm2-135m",
    target: Annotated[
        float, typer.Option(help="Share of the answers' tokens that must be full prefill's most likely ones.")
    ] = 0.98,
    policy: Policy = None,
    ratios: Annotated[str | None, typer.Option(help="Ratios to try, with commas.")] = None,
    samples: Annotated[int, typer.Option(min=8, help="Questions to ask: more of them narrow the intervals.")] = 32,
    chunks: Annotated[int, typer.Option(min=2, help="Chunks in each prompt, the question's own included.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 32,
    seed: Annotated[int, typer.Option(help="Draws chunks and their orders.")] = 0,
    store_dir: Annotated[
        Path | None,
        typer.Option(
            envvar=STORE_DIR_VARIABLE,
            help="Write the choice into this folder of caches, for every engine that uses it.",
        ),
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="The tenant whose caches are read and kept there.")] = None,
    dtype: DType = "auto",
    compress: Compress = None,
    json_file: Json = None,
) -> None:
    """Find the least ratio whose answers agree with full prefill's, and keep it for later engines.

    Each sample is a question about one chunk among others. The ratio is chosen whose agreement reaches --target at
    the lower end of its 95% interval; no right answers are needed.
    """
    from cachecraft_rag.calibration import run
    from cachecraft_rag.calibration.questions import load_questions
    from cachecraft_rag.config import DEFAULT_POLICY
    from cachecraft_rag.demo.defaults import fitting_dtype, model_folder
    from cachecraft_rag.demo.documents import load_folder, load_lines

    if (not docs) == (jsonl is None):
        raise InvalidInput("give --docs DIR or --jsonl FILE, one of them")
    placed = load_lines(jsonl) if jsonl is not None else [c for folder in docs or () for c in load_folder(folder)]
    options = {"namespace": namespace, "compress": compress}
    result = run.calibrate(
        model_folder(model),
        placed,
        questions=[] if questions is None else load_questions(questions),
        target=target,
        policy=policy or DEFAULT_POLICY,
        ratios=run.RATIOS if ratios is None else shares(ratios),
        samples=samples,
        chunks_each=chunks,
        max_tokens=max_tokens,
        seed=seed,
        store_dir=store_dir,
        dtype=fitting_dtype(dtype),
        progress=sys.stderr.isatty(),
        **{name: value for name, value in options.items() if value is not None},
    )
    finish(result, json_file)
