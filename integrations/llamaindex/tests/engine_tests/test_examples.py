"""The examples run as they are; only the engine is the one of these tests."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import llamaindex_setup
import pytest
from llama_index.llms.cachecraft import Cachecraft

EXAMPLES = Path(llamaindex_setup.__file__).parent
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("llamaindex_*.py") if path.name != "llamaindex_setup.py")


@pytest.fixture
def run(engine, monkeypatch, capsys):
    def of(script: str) -> str:
        monkeypatch.setattr(
            llamaindex_setup, "open_llm", lambda **options: Cachecraft(engine=engine, max_tokens=40, **options)
        )
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    return of


def test_there_are_four() -> None:
    assert SCRIPTS == [
        "llamaindex_chat_engine.py",
        "llamaindex_ingestion.py",
        "llamaindex_query_engine.py",
        "llamaindex_streaming.py",
    ]
    assert all(len((EXAMPLES / script).read_text().splitlines()) < 60 for script in SCRIPTS)


def test_query_engine(run) -> None:
    printed = run("llamaindex_query_engine.py")
    assert printed.count("4 chunks: 4 hit, 0 missed, 0 refused") == 2
    assert "07-battery.md" in printed


def test_chat_engine(run) -> None:
    printed = run("llamaindex_chat_engine.py")
    assert printed.count("3 chunks: 3 hit, 0 missed, 0 refused") == 2
    assert "recovered" in printed


def test_ingestion(run) -> None:
    printed = run("llamaindex_ingestion.py")
    count = int(re.search(r"^first: (\d+) nodes, \1 points", printed, re.MULTILINE)[1])
    assert count > 10
    assert f"again: 0 nodes, {count} points" in printed
    gone, stay = map(
        int, re.search(r"^deleted: (\d+) chunks left the engine, (\d+) points", printed, re.MULTILINE).groups()
    )
    assert gone > 1
    assert stay == count - gone
    assert f"back: {gone} nodes, {count} points; {gone} chunks stored" in printed


def test_streaming(run) -> None:
    printed = run("llamaindex_streaming.py")
    assert "4 chunks: 4 hit, 0 missed, 0 refused" in printed
    assert len(re.findall("^- .{10}", printed, re.MULTILINE)) == 2
    assert "given up after" in printed


def test_the_setup_starts_an_engine_of_the_named_model(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "/a/model"])
    llm = llamaindex_setup.open_llm()
    assert llm.model == "/a/model"
    assert llm.metadata.context_window == 4096
