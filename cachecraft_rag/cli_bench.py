"""`cachecraft bench`: what is measured on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cachecraft_rag.cli_options import INEXACT, DType, Json, Model, finish
from cachecraft_rag.cli_quality import quality_app
from cachecraft_rag.config import DEFAULT_POLICY
from cachecraft_rag.errors import InvalidInput

bench_app = typer.Typer(no_args_is_help=True, help="Measure on this machine.")
bench_app.add_typer(quality_app)


@bench_app.command()
def speed(
    model: Model = "smollm2-135m",
    chunks: Annotated[int, typer.Option(min=1, help="Chunks in the prompt.")] = 8,
    chunk_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each.")] = 512,
    ratio: Annotated[float, typer.Option(help="Share of the reused tokens that is recomputed.")] = 0.15,
    policy: Annotated[str, typer.Option(help="Selection policy: which reused tokens are recomputed.")] = DEFAULT_POLICY,
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
    finish(result, json_file)


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
    finish(bench_eviction(streams), json_file)


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
    finish(result, json_file)


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
    finish(result, json_file)
    if not result.passed:
        raise typer.Exit(INEXACT)
