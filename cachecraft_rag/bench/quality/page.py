"""Results as pictures and as one HTML page that needs nothing beside it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from cachecraft_rag.bench.quality.plot import draw, kl_front
from cachecraft_rag.bench.quality.result import COLUMNS, QualityResult, cells
from cachecraft_rag.errors import InvalidInput

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Quality over reused chunks</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem; }}
section {{ margin: 2.5rem 0; overflow-x: auto; }}
img {{ max-width: 100%; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }}
th, td {{ padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd; }}
th:first-child, td:first-child {{ text-align: left; }}
tr.front td:first-child::after {{ content: " ●"; color: #009E73; }}
</style></head><body>
<h1>Quality over reused chunks</h1>
<p>KL: mean divergence to full prefill's next-token distributions along its answer, in nats. KL of naive: over
naive reuse's. F1 of full: F1 over full
prefill's. PGR: share of full prefill's gain over no context. Computed: rows the model ran for the context, over its
tokens. TTFT: over full prefill's, median. Brackets hold 95% bootstrap intervals over questions. ● marks the Pareto
front of KL over the computed share.</p>
{sections}
</body></html>
"""


def write_page(files: Sequence[Path], page: Path) -> list[Path]:
    """Draw the results in `files` that `cachecraft bench quality --json` wrote; returns what was written.

    The page comes first, then a PNG beside it for each file, which has the file's name. Raises `InvalidInput` before
    anything is written where one of them would be written over another or over a result.
    """
    pictures = [page.with_name(f"{file.stem}.png") for file in files]
    _check_apart(files, pictures, page)
    results = [QualityResult.read(file) for file in files]
    drawn = [draw(result) for result in results]
    sections = [_section(result, png) for result, png in zip(results, drawn, strict=True)]
    for path, png in zip(pictures, drawn, strict=True):
        path.write_bytes(png)
    page.write_text(_PAGE.format(sections="\n".join(sections)), encoding="utf-8")
    return [page, *pictures]


def _check_apart(files: Sequence[Path], pictures: Sequence[Path], page: Path) -> None:
    read, written = {file.resolve() for file in files}, set()
    for file, picture in zip(files, pictures, strict=True):
        if picture.resolve() in written:
            raise InvalidInput(f"two results are named {file.stem!r}, and so would be their pictures: rename one")
        if picture.resolve() in read:
            raise InvalidInput(f"the picture of {file} would be written over the result {picture}: rename that")
        written.add(picture.resolve())
    if page.resolve() in read | written:
        what = "a result" if page.resolve() in read else "a picture"
        raise InvalidInput(f"the page {page} would be written over {what}: give another name, such as quality.html")


def _section(result: QualityResult, png: bytes) -> str:
    front = kl_front(result.variants)
    header = "".join(f"<th>{escape(column)}</th>" for column in ("", *COLUMNS))
    rows = "\n".join(
        f"<tr{' class=front' if variant.label in front else ''}>"
        + "".join(f"<td>{escape(text)}</td>" for text in (variant.label, *cells(variant)))
        + "</tr>"
        for variant in result.variants
    )
    return f"""<section>
<h2>{escape(result.heading)}</h2>
<p>{result.context_tokens:,.0f} tokens of context, answers of up to {result.max_tokens} tokens; full prefill itself has
F1 0 on {result.full_fails:.0%} of the questions.</p>
<table><tr>{header}</tr>
{rows}
</table>
<img alt="{escape(result.heading)}" src="data:image/png;base64,{b64encode(png).decode()}">
</section>"""
