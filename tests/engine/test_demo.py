"""The demonstration's core on a real model: a small folder in, two questions answered in three ways."""

import json

import pytest
from rich.console import Console

from cachecraft_rag.demo import show
from cachecraft_rag.demo.documents import load_folder
from cachecraft_rag.demo.measure import summarise
from cachecraft_rag.demo.questions import Question
from cachecraft_rag.demo.run import ask_all, prewarm_chunks

MANUAL = """# The Tern Lamp

## Light

The Tern lamp burns amber and is seen from two kilometres away on a clear night. Its bulb lasts for nine years.

## Price

A Tern lamp costs 77 pounds. A spare bulb costs 5 pounds and comes in a small grey box with a screwdriver.

## Mounting

The lamp is screwed to the mast with four brass bolts. Tighten them by hand, never with a long spanner.
"""


@pytest.fixture
def chunks(tmp_path):
    (tmp_path / "lamp.md").write_text(MANUAL)
    return load_folder(tmp_path)


def test_the_core_of_the_demonstration(engine, chunks):
    console = Console(width=120, record=True, quiet=True)
    report = prewarm_chunks(engine, chunks, console)
    assert (len(report.stored), dict(report.refused)) == (3, {})
    light, price, mounting = chunks
    asked = [
        (Question("How much does a Tern lamp cost?", ("77",)), [price, light, mounting]),
        (Question("How long does the bulb last?", ("nine", "9")), [light, mounting, price]),
    ]
    comparisons = ask_all(engine, asked, chunks, console)
    summary = summarise(comparisons)
    assert [comparison.report.hits for comparison in comparisons] == [3, 3]
    assert comparisons[0].plain_right
    assert summary.share_computed < 0.7
    assert (summary.returned, summary.moved) == (3, 3)
    page = show.page(
        "lamp", show.closing_line(summary), [(c.question.text, c.ours.text, c.report) for c in comparisons]
    )
    assert page.count("<section>") == 2
    json.dumps([comparison.to_dict() for comparison in comparisons])
