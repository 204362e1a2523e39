"""`cachecraft bench data`, `quality`, `plot`, `tables`, `compare`: answers over reused chunks beside full prefill's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cachecraft_rag.cli_options import Compress, DType, Json, Model, StandIn, finish, listed, output_path, shares
from cachecraft_rag.errors import InvalidInput

quality_app = typer.Typer()


@quality_app.command()
def data(
    name: Annotated[str, typer.Argument(help="xquad, 2wiki or musique.")],
    source: Annotated[Path, typer.Argument(help="Folder with the data set's own files.")],
    out: Annotated[Path, typer.Argument(callback=output_path, help="JSON Lines file to write.")],
) -> None:
    """Make a data set for bench quality: ten passages for each question."""
    from cachecraft_rag.bench.quality.data import save_questions
    from cachecraft_rag.bench.quality.sources import FILES, build

    if out.name in FILES and out.resolve().parent == source.resolve():
        raise InvalidInput(f"{out} is a file of the data set itself, which would be lost: give another name")
    questions = build(name, source)
    save_questions(out, questions)
    typer.echo(f"{len(questions)} questions in {out}")


@quality_app.command()
def quality(
    questions: Annotated[
        Path, typer.Option("--data", help="JSON Lines: question, answers, passages of title and text.")
    ],
    model: Model = "smollm2-135m",
    policies: Annotated[str, typer.Option(help="Names of selection policies, with commas.")] = "first,blend",
    ratios: Annotated[str, typer.Option(help="Shares that each of them recomputes, with commas.")] = "0.05,0.15,0.3",
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first questions of the file.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer.")] = 16,
    min_run: Annotated[int, typer.Option(min=1, help="Neighbouring tokens that choices are rounded up to.")] = 1,
    seed: Annotated[int, typer.Option(help="Draws the order of each question's passages.")] = 0,
    dtype: DType = "auto",
    compress: Compress = None,
    stand_in: StandIn = True,
    together: Annotated[
        int, typer.Option(min=1, help="Ways of a question in flight at once: faster, but they have no TTFT.")
    ] = 1,
    timed: Annotated[
        int, typer.Option(min=0, help="Of so many questions send each way without a TTFT once more, alone.")
    ] = 0,
    kv_cache_gb: Annotated[
        float, typer.Option(min=0.1, help="GiB of vLLM's paged cache, which all in flight share.")
    ] = 2.0,
    keep_logits: Annotated[
        bool, typer.Option(help="With --json: keep full prefill's logits, for runs that add a policy.")
    ] = True,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="Stop behind the question at hand then; the next run goes on.")
    ] = None,
    json_file: Json = None,
) -> None:
    """Answers over reused chunks beside those of full prefill: F1, divergence, and what share was recomputed.

    With --json FILE each answer is kept in FILE.records.jsonl at once, and full prefill's logits in the folder
    FILE.logits (4 bytes for each token of an answer and of the vocabulary); a later run goes on there.
    """
    from cachecraft_rag.bench.quality.run import bench_quality
    from cachecraft_rag.demo.defaults import fitting_dtype, model_folder

    result = bench_quality(
        model_folder(model),
        questions,
        policies=listed(policies),
        ratios=shares(ratios),
        limit=limit,
        max_tokens=max_tokens,
        min_run=min_run,
        seed=seed,
        dtype=fitting_dtype(dtype),
        compress=compress,
        **({} if stand_in else {"stand_in": ()}),
        together=together,
        timed=timed,
        kv_cache_gb=kv_cache_gb,
        records=None if json_file is None else json_file.with_name(f"{json_file.name}.records.jsonl"),
        logits=json_file.with_name(f"{json_file.name}.logits") if json_file is not None and keep_logits else None,
        minutes=minutes,
        progress=sys.stderr.isatty(),
    )
    finish(result, json_file)


@quality_app.command()
def plot(
    files: Annotated[list[Path], typer.Argument(help="What bench quality --json wrote.")],
    out: Annotated[Path, typer.Option(callback=output_path, help="Page to write; pictures go beside it.")] = Path(
        "quality.html"
    ),
) -> None:
    """Pictures of quality against cost, and one HTML page with them and the tables. Needs the extra bench."""
    from cachecraft_rag.bench.quality.page import write_page

    for path in write_page(files, out):
        typer.echo(path)


@quality_app.command()
def tables(
    files: Annotated[list[Path], typer.Argument(help="What bench quality --json wrote.")],
    ratios: Annotated[str, typer.Option(help="Ratios that are shown in full, with commas.")] = "0.15",
) -> None:
    """The results as tables in Markdown."""
    from cachecraft_rag.bench.quality.result import QualityResult
    from cachecraft_rag.bench.quality.tables import check_shown, result_tables

    results = [QualityResult.read(file) for file in files]
    shown = check_shown(results, shares(ratios))
    typer.echo("\n\n".join(result_tables(result, shown) for result in results))


@quality_app.command()
def compare(
    one: Annotated[Path, typer.Argument(help="What bench quality --json wrote.")],
    other: Annotated[Path, typer.Argument(help="Another of the same data, such as of another kind of chunk KV.")],
    ways: Annotated[str, typer.Option(help="Such as 'blend 0.15', with commas; all that reuse chunks if empty.")] = "",
    over: Annotated[
        str | None, typer.Option(help="The way of OTHER that each is set against, if not the same one.")
    ] = None,
) -> None:
    """KL and F1 of ways of one result over those of another, question by question, as a table in Markdown."""
    from cachecraft_rag.bench.quality.result import QualityResult
    from cachecraft_rag.bench.quality.tables import comparison_table

    results = QualityResult.read(one), QualityResult.read(other)
    typer.echo(comparison_table(*results, listed(ways), over, names=(str(one), str(other))))
