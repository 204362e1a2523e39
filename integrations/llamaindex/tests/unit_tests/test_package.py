"""What the distribution promises to those who import it."""

from __future__ import annotations

import re
from pathlib import Path

import llama_index.llms.cachecraft as package
from llama_index.core import Settings

from cachecraft_rag.testing import FakeEngine


def test_few_public_names():
    assert len(package.__all__) <= 10
    assert all(hasattr(package, name) for name in package.__all__)


def test_it_is_a_namespace_package_with_types():
    folder = Path(package.__file__).parent
    assert (folder / "py.typed").is_file()
    assert not (folder.parent / "__init__.py").exists()
    assert not (folder.parent.parent / "__init__.py").exists()


def test_the_readmes_example_runs(monkeypatch, embedding, capsys):
    readme = Path(__file__).parents[2] / "README.md"
    [example] = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert example.count("\n") < 16
    monkeypatch.chdir(readme.parents[2])
    monkeypatch.setattr("cachecraft_rag.engine.ChunkEngine", lambda config: FakeEngine(model_name=config.model))
    monkeypatch.setattr(Settings, "_embed_model", embedding)
    exec(example, {"__name__": "__main__"})
    assert "2 chunks: 2 hit, 0 missed, 0 refused" in capsys.readouterr().out
