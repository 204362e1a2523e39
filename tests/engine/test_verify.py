"""The proof itself: ratio 1.0 equals plain vLLM, in float32 and in bfloat16."""

import json
import os

import pytest
from typer.testing import CliRunner

from cachecraft_rag import ChunkEngine
from cachecraft_rag.cli import app
from cachecraft_rag.verify import verify

pytestmark = pytest.mark.engine


def test_float32_texts_are_identical(engine: ChunkEngine) -> None:
    result = verify(engine)
    assert result.exact, str(result)
    assert len(result.cases) >= 8
    assert all(case.identical_texts == case.requests for case in result.cases), str(result)


def test_bfloat16_stays_within_the_noise_of_plain_vllm(tmp_path) -> None:
    out = tmp_path / "out.json"
    model = os.environ.get("CACHECRAFT_TEST_MODEL", "")
    if not model:
        pytest.skip("CACHECRAFT_TEST_MODEL names no model folder")
    outcome = CliRunner().invoke(app, ["verify", model, "--dtype", "bfloat16", "--json", str(out)])
    assert outcome.exit_code == 0, outcome.output
    result = json.loads(out.read_text())
    assert result["exact"] is True
    assert result["dtype"] == "bfloat16"
    assert result["noise"] > 0
