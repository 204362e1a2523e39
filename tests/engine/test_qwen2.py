"""The second proven family, Qwen2, on Qwen2.5-Coder-0.5B: other head counts, and biases in the projections."""

import os
from pathlib import Path

import pytest

from cachecraft_rag.demo.models import default_model_dir, fetch_model
from cachecraft_rag.verify import verify_model

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_qwen2_is_exact_at_ratio_one() -> None:
    name = "qwen2.5-coder-0.5b"
    folder = Path(os.environ.get("CACHECRAFT_TEST_QWEN2", default_model_dir(name)))
    model = folder if (folder / "config.json").exists() else fetch_model(name, folder, progress=False)
    result = verify_model(str(model), dtype="float32", progress=False)
    assert result.exact, str(result)
