"""`cachecraft calibrate`: the least recompute ratio that is good enough for a user's own documents."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cachecraft_rag.cli_options import Compress, DType, Json, Model, Policy, StandIn, finish, shares
from cachecraft_rag.config import STORE_DIR_VARIABLE
from cachecraft_rag.errors import CachecraftError, InvalidInput

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
    namespace: Annotated[
        str | None,
        typer.Option(help="The tenant whose caches are read and kept there. The choice counts for all tenants."),
    ] = None,
    dtype: DType = "auto",
    compress: Compress = None,
    default_system: Annotated[
        str | None, typer.Option(help="System text of prompts that bring none: as the engines have it.")
    ] = None,
    chat_template_kwargs: Annotated[
        str | None, typer.Option(help="Arguments of the chat template in JSON: as the engines have them.")
    ] = None,
    stand_in: StandIn = True,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="The engines' context, where it is too short for all stand-in passages.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Find the least ratio whose answers agree with full prefill's, and keep it for later engines.

    Each sample is a question about one chunk among others. The ratio is chosen whose agreement reaches --target at
    the lower end of its 95% interval, or else 1, which reuses nothing; no right answers are needed. Only engines with
    the same model, dtype, compression, default system text, template arguments and stand-in passages find it.
    """
    from cachecraft_rag.calibration import run
    from cachecraft_rag.calibration.questions import load_questions
    from cachecraft_rag.calibration.result import CalibrationNotKept
    from cachecraft_rag.config import DEFAULT_POLICY
    from cachecraft_rag.demo.defaults import fitting_dtype, model_folder
    from cachecraft_rag.demo.documents import load_folder, load_lines

    if (not docs) == (jsonl is None):
        raise InvalidInput("give --docs DIR or --jsonl FILE, one of them")
    placed = load_lines(jsonl) if jsonl is not None else [c for folder in docs or () for c in load_folder(folder)]
    options = {
        "namespace": namespace,
        "compress": compress,
        "default_system": default_system,
        "chat_template_kwargs": None if chat_template_kwargs is None else _arguments(chat_template_kwargs),
        "stand_in": None if stand_in else (),
        "max_model_len": max_model_len,
    }
    try:
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
    except CalibrationNotKept as error:
        try:
            finish(error.result, json_file)
        except OSError as other:
            raise CachecraftError(f"{error}; {json_file} cannot be written either ({other.strerror})") from other
        raise
    finish(result, json_file)


def _arguments(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidInput(
            f'--chat-template-kwargs {text!r} is no JSON: give an object such as {{"enable_thinking": false}}'
        ) from None
