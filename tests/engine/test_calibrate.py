"""Calibrating on a real engine: what is chosen is what later engines of the same store use."""

import logging
import os

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.calibration.run import calibrate
from cachecraft_rag.config import DEFAULT_POLICY
from cachecraft_rag.errors import InvalidInput

QUESTION = "Who keeps bees?"
OPTIONS = {"dtype": "float32", "kv_cache_gb": 0.5, "cpu_store_gb": 0.5, "progress": False}


def model():
    return os.environ["CACHECRAFT_TEST_MODEL"]


def test_the_choice_is_what_later_engines_use(passages, start_engine, tmp_path, caplog):
    caplog.set_level(logging.INFO, "cachecraft_rag")
    store, chunks = tmp_path / "store", passages(6, 4)
    result = calibrate(
        model(),
        chunks,
        target=0.3,
        ratios=(0.9, 0.2),
        samples=8,
        chunks_each=4,
        max_tokens=8,
        store_dir=store,
        **OPTIONS,
    )
    low, high = result.ratios
    assert (low.ratio, high.ratio, result.choice.ratio) == (0.2, 0.9, 0.2)
    assert high.kl < low.kl
    assert 0 < low.share < 0.3 < high.share < 1
    assert low.first_token_ratio < high.first_token_ratio
    assert len(result.questions) == result.samples == 8
    assert len(set(result.questions)) == 6  # two chunks were drawn twice
    with start_engine(store_dir=store) as engine:
        assert (engine.policy, engine.recompute_ratio) == (DEFAULT_POLICY, 0.2)
        (said,) = [record.message for record in caplog.records if "as calibrated" in record.message]
        assert f"policy {DEFAULT_POLICY} at ratio 0.2" in said
        answer = engine.generate(ChunkPrompt.chat(chunks, QUESTION), max_tokens=1)
        assert answer.report.ratio == 0.2
        assert answer.report.hits == 6  # calibrating has stored them
        assert (
            engine.generate(ChunkPrompt.chat(chunks, QUESTION), max_tokens=1, recompute_ratio=0.5).report.ratio == 0.5
        )
        assert engine.check() == []
    with start_engine(store_dir=store, policy="random", recompute_ratio=0.4) as engine:
        answer = engine.generate(ChunkPrompt.chat(chunks, QUESTION), max_tokens=1)
        assert (answer.report.policy, answer.report.ratio) == ("random", 0.4)


def test_what_nothing_reaches_is_exact_and_questions_may_be_given(passages):
    chunks = passages(3, 4)
    questions = [f"Who lives at number {number}?" for number in range(8)]
    result = calibrate(model(), chunks, questions=questions, target=1.0, ratios=(0.01,), max_tokens=16, **OPTIONS)
    assert (result.samples, set(result.questions)) == (8, set(questions))
    assert result.ratios[0].agreement_low < 1.0
    assert (result.choice.ratio, result.choice.agreement, result.written_to) == (1.0, 1.0, None)


def test_prompts_too_long_for_the_model_are_named(passages):
    with pytest.raises(InvalidInput, match="give fewer --chunks"):
        calibrate(model(), passages(4, 400), **OPTIONS)
