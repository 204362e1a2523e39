"""Options and endings that several commands share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cachecraft_rag.errors import InvalidInput

INEXACT = 1


def output_path(path: Path | None) -> Path | None:
    """Checked before anything is computed."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise InvalidInput(f"{path} cannot be written: give a file in a folder that exists")
    return path


Model = Annotated[str, typer.Option(help="Hugging Face name or folder, or a packaged model such as smollm2-135m.")]
Docs = Annotated[Path, typer.Option(help="Folder of .md and .txt files.")]
DType = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16; auto takes what the machine can do.")]
Policy = Annotated[
    str | None,
    typer.Option(help="Which tokens of reused chunks are recomputed: blend (default), first, none, all, ..."),
]
Ratio = Annotated[
    float | None, typer.Option(help="Share of the reused tokens that is recomputed: 0 is naive reuse, 1 is exact.")
]
Compress = Annotated[
    str | None,
    typer.Option(help="Keep KV in 8 bits, int8 or fp8: only an engine with the same option finds it."),
]
StandIn = Annotated[
    bool, typer.Option(help="Compute chunk KV behind stand-in passages, or behind the prompt's head alone.")
]
Count = Annotated[int, typer.Option("--k", "-k", min=1, help="Chunks retrieved for each question.")]
Json = Annotated[Path | None, typer.Option("--json", callback=output_path, help="Write the results to this file.")]
Html = Annotated[Path | None, typer.Option("--html", callback=output_path, help="Write a page of answers and reports.")]


def listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def shares(text: str) -> list[float]:
    """Numbers with commas."""
    return [_number(share) for share in listed(text)]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"ratio {text!r} is not a number: give shares with commas, such as 0.05,0.15") from None


def finish(result: Any, json_file: Path | None) -> None:
    """Print a result, and write it as JSON where that was asked for."""
    typer.echo(str(result))
    if json_file is not None:
        json_file.write_text(json.dumps(result.to_dict(), ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
