import io
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.report import ChunkReport, Outcome, RequestReport, Timings
from cachecraft_rag.report_html import segments
from cachecraft_rag.report_text import WIDTH

COUNTS = st.integers(0, 10**7)
SECONDS = st.floats(0, 1e6, allow_nan=False)


@st.composite
def chunk_reports(draw):
    tokens = draw(COUNTS)
    return ChunkReport(
        chunk_id=draw(st.text(max_size=40)),
        outcome=draw(st.sampled_from(Outcome)),
        reason=draw(st.text(max_size=200)),
        offset=draw(COUNTS),
        tokens=tokens,
        recomputed=draw(st.integers(0, tokens)),
        exact=draw(st.booleans()),
        document_id=draw(st.none() | st.text(max_size=60)),
    )


REPORTS = st.builds(
    RequestReport,
    request_id=st.text(max_size=150),
    policy=st.text(max_size=20),
    ratio=st.floats(0, 1),
    prompt_tokens=COUNTS,
    prefix_cache_tokens=COUNTS,
    computed_tokens=COUNTS,
    chunks=st.lists(chunk_reports(), max_size=5).map(tuple),
    timings=st.builds(Timings, SECONDS, SECONDS, SECONDS, st.none() | SECONDS),
    slices=COUNTS,
    selection_tokens=SECONDS,
    replans=COUNTS,
    warnings=st.lists(st.text(max_size=300), max_size=2).map(tuple),
)


def chunk(number, outcome=Outcome.HIT, offset=0, tokens=512, recomputed=77, **others):
    values = {"reason": "re-rotated by +512", "exact": False, "document_id": f"docs/{number}.md", **others}
    return ChunkReport(f"{number:08x}-aaaa-5bbb-8ccc-dddddddddddd", outcome, values.pop("reason"), offset, tokens,
                       recomputed, **values)  # fmt: skip


@pytest.fixture
def report():
    chunks = (
        chunk(1, offset=40, recomputed=0, exact=True, reason="exact prefix"),
        chunk(2, offset=552),
        chunk(3, Outcome.MISS, offset=1070, recomputed=512, reason="not in the store"),
        chunk(4, Outcome.REFUSED, offset=1582, tokens=10, recomputed=10, reason="shorter than 16 tokens"),
    )
    return RequestReport(
        request_id="r-1",
        policy="first",
        ratio=0.15,
        prompt_tokens=1620,
        prefix_cache_tokens=32,
        computed_tokens=641,
        chunks=chunks,
        timings=Timings(0.0004, 0.012, 0.2, 0.25),
        slices=1,
        warnings=("the store is full",),
    )


def test_totals(report):
    assert (report.hits, report.misses, report.refused) == (2, 1, 1)
    assert report.reused_tokens == 512 + 435
    assert report.recomputed_tokens == 77
    assert report.share_computed == pytest.approx(641 / 1620)
    assert RequestReport("r", "none", 0.0, 0, 0, 0).share_computed == 0.0


@pytest.mark.parametrize("values", [{"offset": -1}, {"recomputed": 513}, {"recomputed": -1}])
def test_impossible_counts_are_refused(values):
    with pytest.raises(InvalidInput, match="chunk 00000001"):
        chunk(1, **values)


@given(REPORTS)
def test_json_round_trip(report):
    assert RequestReport.from_json(report.to_json()) == report
    assert RequestReport.from_dict(report.to_dict()) == report


def test_json_holds_plain_values_and_totals(report):
    fields = json.loads(report.to_json())
    assert fields["chunks"][2]["outcome"] == "MISS"
    assert fields["totals"] == {
        "hits": 2, "misses": 1, "refused": 1, "reused_tokens": 947, "recomputed_tokens": 77,
        "share_computed": 641 / 1620,
    }  # fmt: skip


def test_keys_of_a_newer_version_are_ignored(report):
    fields = report.to_dict()
    fields["energy"] = 1
    fields["chunks"][0]["variant"] = "x"
    fields["timings"]["queue"] = 0.1
    assert RequestReport.from_dict(fields) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"chunks": 1}', '{"chunks": [{}], "timings": {}}'])
def test_what_is_no_report_is_refused(text):
    with pytest.raises(InvalidInput, match="request report"):
        RequestReport.from_json(text)


def test_first_token_is_set_on_a_copy(report):
    late = report.with_first_token(1.5)
    assert late.timings == Timings(0.0004, 0.012, 0.2, 1.5)
    assert report.timings.first_token == 0.25


def test_text_shows_each_chunk_with_its_reason(report):
    lines = str(report).splitlines()
    (missed,) = [line for line in lines if "MISS" in line]
    assert missed.split() == ["3", "00000003", "docs/3.md", "MISS", "1,070", "512", "0", "512", "not", "in", "the",
                              "store"]  # fmt: skip
    assert "2 hit, 1 missed, 1 refused; 77 tokens of hits recomputed" in str(report)
    assert "lookup 0.4 ms, staging 12 ms, recompute 200 ms in 1 slice, first token 250 ms" in str(report)
    assert lines[-1] == "warning: the store is full"


def test_text_says_what_the_choice_cost(report):
    assert "641 computed (39.6%), 947 reused" in str(report)
    assert "641 computed (39.6%) and 28 run to choose them, " in str(replace(report, selection_tokens=27.6))


@given(REPORTS)
def test_text_fits_its_width_and_every_view_takes_any_text(report):
    assert all(len(line) <= WIDTH for line in str(report).splitlines())
    Balanced().feed(report._repr_html_())


def test_a_long_reason_is_wrapped_not_cut(report):
    reason = "the stored text differs from the text of the request, so that its KV would answer for another document"
    shown = str(RequestReport("r", "first", 0.1, 600, 0, 600, (chunk(1, Outcome.REFUSED, reason=reason),)))
    assert " ".join(shown.split("00000001")[1].split()).count("another document") == 1
    assert "..." not in shown


def test_wide_characters_keep_the_columns_aligned(report):
    wide = RequestReport("r", "first", 0.1, 1000, 0, 10, (chunk(1, document_id="手冊"), chunk(2, document_id="ab")))
    first, second = [line for line in str(wide).splitlines() if "HIT" in line]
    assert first.index("HIT") + 2 == second.index("HIT")


def test_rich_table_does_not_read_markup_in_ids(report):
    from rich.console import Console

    marked = RequestReport("[bold]r", "first", 0.1, 1000, 0, 10, (chunk(1, document_id="[red]x[/]", reason="[/b]"),))
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(marked.table())
    shown = console.export_text()
    assert "[red]x[/]" in shown
    assert "[/b]" in shown
    assert "[bold]r" in shown


def test_segments_cover_the_prompt_in_order(report):
    parts = list(segments(report))
    assert [part.label for part in parts] == ["", "1", "2", "", "3", "4", ""]
    assert sum(part.tokens for part in parts) == report.prompt_tokens
    assert parts[0].kinds == (("prefix", 32), ("text", 8))
    assert parts[2].kinds == (("recomputed", 77), ("reused", 435))
    assert parts[4].kinds == (("miss", 512), ("reused", 0))
    assert "0 reused, 10 computed" in parts[5].title


def test_html_is_escaped_and_balanced(report):
    evil = chunk(9, document_id='<script>alert("x")</script>', reason="<b>'\"&")
    page = RequestReport("<i>", "<u>", 0.1, 600, 0, 600, (evil,), warnings=("<img>",))._repr_html_()
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    assert parser.seen <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td"}


def test_report_needs_neither_rich_nor_torch():
    code = "import sys, cachecraft_rag.report; print({'rich', 'torch', 'vllm', 'numpy'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "set()"


class Balanced(HTMLParser):
    """Raises at a tag that closes nothing, and remembers what is open and what was seen."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], set()

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
