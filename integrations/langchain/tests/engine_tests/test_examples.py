"""The examples run as they are; only the engine is the one of these tests."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import langchain_cachecraft
import pytest
from langchain_cachecraft import ChatCachecraft

import cachecraft_rag
from cachecraft_rag import ChunkEngine

EXAMPLES = Path(cachecraft_rag.__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("langchain_*.py") if path.name != "langchain_setup.py")


@pytest.fixture
def run(engine: ChunkEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import langchain_setup

    def of(script: str) -> str:
        with monkeypatch.context() as patched:
            patched.setattr(langchain_setup, "open_llm", lambda: ChatCachecraft(engine=engine, max_tokens=40))
            runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    yield of
    sys.modules.pop("langchain_setup")


def test_there_are_five() -> None:
    assert SCRIPTS == [
        "langchain_agent.py",
        "langchain_ingest.py",
        "langchain_lcel.py",
        "langchain_old_chain.py",
        "langchain_retrieval_chain.py",
    ]
    assert all(len((EXAMPLES / script).read_text().splitlines()) < 60 for script in SCRIPTS)


def test_the_example_of_the_readme(
    engine: ChunkEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = Path(__file__).parents[2].joinpath("README.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)

    def open_llm(model: str, **options: int) -> ChatCachecraft:
        assert model == "HuggingFaceTB/SmolLM2-135M-Instruct"
        return ChatCachecraft(engine=engine, **options)

    monkeypatch.setattr(langchain_cachecraft, "ChatCachecraft", open_llm, raising=False)
    exec(code, {"__name__": "__main__"})
    assert "'hits': 2" in capsys.readouterr().out


def test_lcel(run) -> None:
    printed = run("langchain_lcel.py")
    assert printed.count("4 chunks: 4 hit, 0 missed, 0 refused") == 2


def test_retrieval_chain(run) -> None:
    printed = run("langchain_retrieval_chain.py")
    assert len(re.findall(r"^found [0-9a-f]{8} in 0", printed, re.MULTILINE)) == 4
    assert len(printed.strip().splitlines()[-1]) > 20


def test_old_chain(run) -> None:
    printed = run("langchain_old_chain.py")
    assert "4 chunks: 4 hit, 0 missed, 0 refused" in printed
    assert "recovered" in printed


def test_agent(run) -> None:
    printed = run("langchain_agent.py")
    assert "found 3 chunks" in printed
    assert "3 chunks: 3 hit, 0 missed, 0 refused" in printed


def test_ingest(run) -> None:
    printed = run("langchain_ingest.py")
    assert re.search(r"^all: [1-9]\d* chunks embedded, 0 were there", printed, re.MULTILINE)
    assert re.search(r"^again: 0 chunks embedded, [1-9]\d* were there", printed, re.MULTILINE)
    assert re.search(r"^one is gone: 0 chunks embedded, \d+ were there, [1-9]\d* removed", printed, re.MULTILINE)
    assert "'hits': 3, 'misses': 0" in printed
