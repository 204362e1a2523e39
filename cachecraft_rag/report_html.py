"""The request report as HTML for notebooks: the prompt drawn as a bar, and the chunks as a table."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from cachecraft_rag.report_text import ID_CHARS, clean, footer, headline, seconds, with_documents

if TYPE_CHECKING:
    from cachecraft_rag.report import ChunkReport, RequestReport

# Kinds of tokens in the bar, in the order of the legend: told apart on white, on black, and by the colour-blind.
COLOURS = {
    "reused": "#1b9e77",
    "recomputed": "#e6a117",
    "miss": "#4f83cc",
    "refused": "repeating-linear-gradient(45deg,#c2417a 0 4px,#e08bb0 4px 7px)",
    "text": "#8b949e",
    "prefix": "repeating-linear-gradient(45deg,#1b9e77 0 4px,#8b949e 4px 7px)",
}
LEGEND = {
    "reused": "reused",
    "recomputed": "recomputed (hit)",
    "miss": "computed (miss)",
    "refused": "computed (refused)",
    "text": "text, computed",
    "prefix": "text from vLLM's prefix cache",
}
KIND_OF_OUTCOME = {"HIT": "recomputed", "MISS": "miss", "REFUSED": "refused"}
DOT_OF_OUTCOME = {"HIT": "reused", "MISS": "miss", "REFUSED": "refused"}


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the prompt: one chunk, or the text between two, and how many of its tokens are of which kind."""

    label: str
    title: str
    kinds: tuple[tuple[str, int], ...]

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.kinds)


def segments(report: "RequestReport") -> Iterator[Segment]:
    end = 0
    numbered = list(enumerate(report.chunks, 1))
    for number, chunk in sorted(numbered, key=lambda pair: (pair[1].offset, pair[0])):
        yield from _text_segment(report, end, chunk.offset)
        if chunk.tokens:
            yield Segment(str(number), _chunk_title(number, chunk), _chunk_kinds(chunk))
        end = max(end, chunk.offset + chunk.tokens)
    yield from _text_segment(report, end, report.prompt_tokens)


def html(report: "RequestReport") -> str:
    """Self-contained: inline styles only, colours of text inherited from the notebook's theme."""
    first_token = report.timings.first_token
    facts = [
        (f"{report.share_computed:.1%}", f"of {report.prompt_tokens:,} prompt tokens computed"),
        (f"{report.reused_tokens:,}", "chunk tokens reused"),
        (f"{report.hits} / {report.misses} / {report.refused}", "chunks hit / missed / refused"),
        ("?" if first_token is None else seconds(first_token), "to first token"),
    ]
    head = "".join(
        f'<div><div style="font-size:1.35em;font-weight:600;line-height:1.2">{escape(value)}</div>'
        f'<div style="font-size:.85em;opacity:.75">{escape(label)}</div></div>'
        for value, label in facts
    )
    warnings = "".join(
        '<div style="margin-top:6px;padding:4px 10px;border-left:3px solid #e6a117;background:rgba(230,161,23,.12)">'
        f"{escape(clean(warning))}</div>"
        for warning in report.warnings
    )
    notes = " · ".join(f"<span>{escape(line)}</span>" for line in (*headline(report)[:1], *footer(report)))
    return (
        '<div class="cachecraft-report" style="font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:980px;'
        'padding:4px 2px">'
        f'<div style="display:flex;flex-wrap:wrap;gap:6px 34px;margin-bottom:12px">{head}</div>'
        f"{_html_bar(report)}{_html_table(report)}{warnings}"
        f'<div style="margin-top:8px;font-size:.85em;opacity:.75">{notes}</div></div>'
    )


def _html_bar(report: "RequestReport") -> str:
    parts = list(segments(report))
    drawn = ""
    for segment in parts:
        pieces = "".join(
            f'<div style="flex:{tokens} 1 0;background:{COLOURS[kind]}"></div>'
            for kind, tokens in segment.kinds
            if tokens
        )
        drawn += (
            f'<div title="{escape(segment.title, quote=True)}" style="flex:{segment.tokens} 1 0;min-width:2px;'
            'overflow:hidden;text-align:center">'
            f'<div style="display:flex;height:30px;border-radius:3px;overflow:hidden">{pieces}</div>'
            f'<div style="font-size:.8em;line-height:1.6;opacity:.75;white-space:nowrap">{escape(segment.label)}&nbsp;'
            "</div></div>"
        )
    present = {kind for segment in parts for kind, tokens in segment.kinds if tokens}
    legend = "".join(
        f'<span style="white-space:nowrap">{_html_dot(kind)}{escape(label)}</span>'
        for kind, label in LEGEND.items()
        if kind in present
    )
    return (
        f'<div role="img" aria-label="The prompt in order: {escape(LEGEND["reused"])} and computed stretches" '
        f'style="display:flex;gap:2px;width:100%">{drawn}</div>'
        f'<div style="display:flex;flex-wrap:wrap;gap:2px 18px;font-size:.85em;margin:2px 0 10px">{legend}</div>'
    )


def _html_table(report: "RequestReport") -> str:
    if not report.chunks:
        return ""
    documents = with_documents(report)
    names = ["#", "chunk", *(["document"] if documents else []), "outcome", "offset", "tokens", "reused", "recomputed"]
    numeric = {"#", "offset", "tokens", "reused", "recomputed"}
    head = "".join(_html_cell("th", name, name in numeric) for name in [*names, "exact", "reason"])
    body = ""
    for number, chunk in enumerate(report.chunks, 1):
        body += (
            '<tr style="background:none">'
            + _html_cell("td", str(number), True)
            + _html_cell("td", clean(chunk.chunk_id)[:ID_CHARS], False, title=chunk.chunk_id, mono=True)
            + (_html_cell("td", clean(chunk.document_id or ""), False) if documents else "")
            + _html_cell("td", chunk.outcome.value, False, dot=DOT_OF_OUTCOME[chunk.outcome])
            + "".join(
                _html_cell("td", f"{value:,}", True)
                for value in (chunk.offset, chunk.tokens, chunk.reused, chunk.recomputed)
            )
            + _html_cell("td", "yes" if chunk.exact else "", False)
            + _html_cell("td", clean(chunk.reason), False)
            + "</tr>"
        )
    return (
        '<table style="border-collapse:collapse;width:100%;margin:0;font-size:.92em;color:inherit">'
        f'<thead><tr style="background:none">{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _html_cell(tag: str, value: str, numeric: bool, title: str = "", dot: str = "", mono: bool = False) -> str:
    style = "padding:3px 10px 3px 2px;border:0;border-bottom:1px solid rgba(128,128,128,.28);vertical-align:top;"
    style += "text-align:right;font-variant-numeric:tabular-nums;" if numeric else "text-align:left;"
    style += "font-weight:600;" if tag == "th" else ""
    style += "font-family:ui-monospace,monospace;" if mono else ""
    style += "white-space:nowrap;" if dot else ""
    tooltip = f' title="{escape(title, quote=True)}"' if title else ""
    return f'<{tag} style="{style}"{tooltip}>{_html_dot(dot) if dot else ""}{escape(value)}</{tag}>'


def _html_dot(kind: str) -> str:
    return (
        '<span style="display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px;'
        f'background:{COLOURS[kind]}"></span>'
    )


def _text_segment(report: "RequestReport", start: int, end: int) -> Iterator[Segment]:
    if end <= start:
        return
    cached = min(max(report.prefix_cache_tokens - start, 0), end - start)
    computed = end - start - cached
    found = f", {cached:,} of them from vLLM's prefix cache" if cached else ""
    yield Segment("", f"text at {start:,}: {end - start:,} tokens{found}", (("prefix", cached), ("text", computed)))


def _chunk_kinds(chunk: "ChunkReport") -> tuple[tuple[str, int], ...]:
    return ((KIND_OF_OUTCOME[chunk.outcome], chunk.recomputed), ("reused", chunk.reused))


def _chunk_title(number: int, chunk: "ChunkReport") -> str:
    document = f" of {clean(chunk.document_id)}" if chunk.document_id else ""
    return (
        f"chunk {number}, {clean(chunk.chunk_id)}{document}\n{chunk.outcome.value}: {clean(chunk.reason)}\n"
        f"{chunk.tokens:,} tokens at {chunk.offset:,}: {chunk.reused:,} reused, {chunk.recomputed:,} computed"
    )
