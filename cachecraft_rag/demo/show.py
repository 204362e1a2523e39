"""What the demonstration prints, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.markup import escape as plain_markup
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cachecraft_rag.report_text import plural, seconds

if TYPE_CHECKING:
    from cachecraft_rag.answer import Answer
    from cachecraft_rag.demo.measure import Comparison, Summary
    from cachecraft_rag.report import RequestReport

WIDTH_OF_FILES = 140  # columns where the output is no terminal

_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }}
section {{ margin: 2.5rem 0; overflow-x: auto; }}
blockquote {{ margin: .5rem 0 1rem; padding-left: 1rem; border-left: 3px solid #1b9e77; white-space: pre-wrap; }}
</style></head><body>
<h1>{title}</h1>
<p>{closing}</p>
{sections}
</body></html>
"""


def make_console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH_OF_FILES)


def answer_panel(question: str, answer: Answer, verdict: RenderableType = "") -> Panel:
    body: list[RenderableType] = [Text(answer.text.strip() or "(an empty answer)")]
    if verdict:
        body += ["", verdict]
    return Panel(Group(*body), title=f"[bold]{plain_markup(question)}[/]", title_align="left", border_style="cyan")


def verdict(comparison: Comparison) -> Text:
    """Right or not, what plain vLLM said, and the three times."""
    line = Text()
    if comparison.right is not None:
        expected = " or ".join(comparison.question.expects)
        line += _mark(comparison.right) + Text(f" (expected: {expected}); ")
    if comparison.same_text:
        line += Text("plain vLLM says the same", style="green")
    else:
        line += Text("plain vLLM ")
        line += Text("says: ") if comparison.plain_right is None else _mark(comparison.plain_right) + Text(": ")
        line += Text(comparison.plain.text.strip(), style="italic")
    ours, cached, plain = (a.first_token_seconds for a in (comparison.ours, comparison.cached, comparison.plain))
    line += Text(
        f"\nfirst token after {seconds(ours)}; plain vLLM {seconds(plain)} ({plain / ours:.1f}x), "
        f"with prefix caching {seconds(cached)} ({cached / ours:.1f}x)"
    )
    return line


def summary_table(summary: Summary) -> Table:
    table = Table(title=f"Medians over {plural(summary.questions, 'question')}", title_justify="left")
    table.add_column("")
    for name in ("time to first token", "as a multiple of ours", "prompt tokens computed", "right answers"):
        table.add_column(name, justify="right")
    right = [
        f"{count} of {summary.judged}" if summary.judged else "-" for count in (summary.right, summary.plain_right)
    ]
    share = f"{summary.share_computed:.0%}"
    table.add_row("[bold]chunks reused[/]", f"[bold]{seconds(summary.ours)}[/]", "1", share, right[0])
    cached, ratio = summary.plain_prefix_caching, summary.speedup_vs_prefix_cache
    table.add_row("plain vLLM with prefix caching", seconds(cached), f"{ratio:.1f}x", "", right[1])
    table.add_row(
        "plain vLLM, no prefix caching", seconds(summary.plain), f"{summary.speedup_vs_plain:.1f}x", "100%", right[1]
    )
    return table


def closing_line(summary: Summary) -> str:
    moved = (
        f"{summary.returned} chunks came back for several questions, {summary.moved} of them at other positions; "
        if summary.returned
        else ""
    )
    right = f", {summary.right} of {summary.judged} answers right (plain vLLM: {summary.plain_right})"
    return (
        f"{moved}{summary.share_computed:.0%} of the prompt's tokens were computed, the first token came "
        f"{summary.speedup_vs_plain:.1f} times sooner than from plain vLLM{right if summary.judged else ''}."
    )


def page(title: str, closing: str, answers: Sequence[tuple[str, str, RequestReport | None]]) -> str:
    """A self-contained page; `answers`: (question, answer, report)."""
    sections = "\n".join(
        f"<section><h2>{escape(question)}</h2><blockquote>{escape(answer.strip())}</blockquote>"
        f"{report._repr_html_() if report is not None else ''}</section>"
        for question, answer, report in answers
    )
    return _PAGE.format(title=escape(title), closing=escape(closing), sections=sections)


def _mark(right: bool) -> Text:
    return Text("right", style="bold green") if right else Text("wrong", style="bold red")
