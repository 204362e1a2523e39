"""What an import costs."""

from __future__ import annotations

import subprocess
import sys

import langchain_cachecraft

HEAVY = ("vllm", "torch", "transformers", "tokenizers", "numpy", "rich", "langchain_classic", "qdrant_client")


def test_nothing_heavy_is_imported() -> None:
    names = ", ".join(langchain_cachecraft.__all__)
    code = f"from langchain_cachecraft import {names}\nimport sys\nprint([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    assert len(langchain_cachecraft.__all__) <= 10
    for name in langchain_cachecraft.__all__:
        assert getattr(langchain_cachecraft, name).__doc__
        assert name in dir(langchain_cachecraft)
