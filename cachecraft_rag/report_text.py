"""The request report as plain text and as a rich table."""

import textwrap
import unicodedata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from cachecraft_rag.report import RequestReport

WIDTH = 100  # columns of the plain text
ID_CHARS = 8
DOCUMENT_CHARS = 20

STYLE_OF_OUTCOME = {"HIT": "green", "MISS": "blue", "REFUSED": "magenta"}


def text(report: "RequestReport") -> str:
    lines = _wrapped(headline(report))
    if report.chunks:
        lines += ["", *_text_table(report), ""]
    lines += _wrapped(footer(report)) + _wrapped(warnings(report))
    return "\n".join(lines)


def table(report: "RequestReport") -> "Table":
    from rich.table import Table
    from rich.text import Text

    caption = "\n".join(footer(report) + warnings(report))
    result = Table(title=Text("\n".join(headline(report))), caption=Text(caption))
    documents = with_documents(report)
    for name in ("#", "chunk", *(["document"] if documents else []), "outcome"):
        result.add_column(name, no_wrap=name != "document", justify="right" if name == "#" else "left")
    for name in ("offset", "tokens", "reused", "recomputed"):
        result.add_column(name, justify="right", no_wrap=True)
    result.add_column("exact")
    result.add_column("reason", overflow="fold")
    for number, chunk in enumerate(report.chunks, 1):
        result.add_row(
            str(number),
            Text(clean(chunk.chunk_id)[:ID_CHARS]),
            *([Text(clean(chunk.document_id or ""))] if documents else []),
            Text(chunk.outcome.value, style=STYLE_OF_OUTCOME[chunk.outcome]),
            *(f"{value:,}" for value in (chunk.offset, chunk.tokens, chunk.reused, chunk.recomputed)),
            "yes" if chunk.exact else "",
            Text(clean(chunk.reason)),
        )
    return result


def headline(report: "RequestReport") -> list[str]:
    share = f"{report.computed_tokens:,} computed ({report.share_computed:.1%})"
    if report.selection_tokens:
        share += f" and {report.selection_tokens:,.0f} run to choose them"
    return [
        f"request {clean(report.request_id)}, policy {clean(report.policy)} at ratio {report.ratio:g}",
        (
            f"{report.prompt_tokens:,} prompt tokens: {share}, {report.reused_tokens:,} reused from chunks, "
            f"{report.prefix_cache_tokens:,} in vLLM's prefix cache"
        ),
    ]


def footer(report: "RequestReport") -> list[str]:
    timings = report.timings
    first = "not known yet" if timings.first_token is None else seconds(timings.first_token)
    replans = f", {plural(report.replans, 'replan')} after preemption" if report.replans else ""
    outcomes = f"{report.hits} hit, {report.misses} missed, {report.refused} refused"
    return [
        f"{plural(len(report.chunks), 'chunk')}: {outcomes}; {report.recomputed_tokens:,} tokens of hits recomputed",
        (
            f"lookup {seconds(timings.lookup)}, staging {seconds(timings.staging)}, "
            f"recompute {seconds(timings.recompute)} in {plural(report.slices, 'slice')}, first token {first}{replans}"
        ),
    ]


def warnings(report: "RequestReport") -> list[str]:
    return ["warning: " + clean(warning) for warning in report.warnings]


def _text_table(report: "RequestReport") -> list[str]:
    documents = with_documents(report)
    rows = [["#", "chunk", "document", "outcome", "offset", "tokens", "reused", "recomputed", "reason"]]
    for number, chunk in enumerate(report.chunks, 1):
        rows.append([
            str(number), clean(chunk.chunk_id)[:ID_CHARS], _clip(clean(chunk.document_id or ""), DOCUMENT_CHARS),
            chunk.outcome.value, *(f"{n:,}" for n in (chunk.offset, chunk.tokens, chunk.reused, chunk.recomputed)),
            clean(chunk.reason),
        ])  # fmt: skip
    if not documents:
        rows = [[*row[:2], *row[3:]] for row in rows]
    widths = [max(_cells(cell) for cell in column) for column in zip(*rows, strict=True)]
    reason_width = max(WIDTH - sum(widths[:-1]) - 2 * len(widths[:-1]), 8)
    numeric = {0, *range(len(widths) - 5, len(widths) - 1)}
    lines = []
    for *cells, reason in rows:
        left = "  ".join(_pad(cell, widths[index], index in numeric) for index, cell in enumerate(cells))
        for piece in textwrap.wrap(reason, reason_width) or [""]:
            lines.append(_clip(f"{left}  {piece}".rstrip(), WIDTH))
            left = " " * _cells(left)
    return lines


def with_documents(report: "RequestReport") -> bool:
    return any(chunk.document_id for chunk in report.chunks)


def seconds(value: float) -> str:
    return f"{value * 1000:.3g} ms" if value < 0.9995 else f"{value:.2f} s"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def clean(value: str) -> str:
    """One line without control characters, whatever an id or a reason holds."""
    return " ".join("".join(char if char.isprintable() else " " for char in value).split())


def _wrapped(lines: list[str]) -> list[str]:
    return [piece for line in lines for piece in textwrap.wrap(line, WIDTH, subsequent_indent="  ")]


def _cells(value: str) -> int:
    """Columns that the text takes on a terminal."""
    return sum(_char_cells(char) for char in value)


def _char_cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _pad(value: str, width: int, right: bool) -> str:
    space = " " * (width - _cells(value))
    return space + value if right else value + space


def _clip(value: str, width: int) -> str:
    if _cells(value) <= width:
        return value
    kept, used = "", 0
    for char in value:
        used += _char_cells(char)
        if used > width - 3:
            break
        kept += char
    return kept.rstrip() + "..."
