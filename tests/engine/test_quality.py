"""The quality benchmark on a real engine: what it measures falls as it must, and interruptions change nothing."""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from cachecraft_rag.bench.quality.data import Passage, Question, load_questions, save_questions
from cachecraft_rag.bench.quality.forced_engine import ForcedEngine, start_forced_engine
from cachecraft_rag.bench.quality.kept_logits import KeptLogits
from cachecraft_rag.bench.quality.measure import Measurer
from cachecraft_rag.bench.quality.records import Records
from cachecraft_rag.bench.quality.run import bench_quality
from cachecraft_rag.bench.quality.variants import EXACT_PREFIX, FULL, NAIVE, NO_CONTEXT, Variant, make_variants
from cachecraft_rag.bench.quality.ways import Ways
from cachecraft_rag.reuse import POLICIES
from cachecraft_rag.verification.cases import passage

RATIOS = (0.0, 0.3, 0.9, 1.0)
ASKED = (
    ("Who keeps bees?", [0, 1, 2, 3]),
    ("Where does Greta live?", [3, 1, 0, 4]),
    ("What was bought in 1950?", [4, 3, 2, 1]),
    ("Who owns a glass boat?", [2, 4, 0, 5]),
    ("Which room is empty?", [5, 0, 3, 2]),
    ("What does Hugo own?", [1, 5, 4, 3]),
)
OPTIONS = {"dtype": "float32", "kv_cache_gb": 0.5, "cpu_store_gb": 0.5, "max_model_len": 2048, "keep_variants": 1}


@pytest.fixture(scope="module")
def questions() -> list[Question]:
    passages = [Passage("", passage(9000 + number, 5).text) for number in range(6)]
    return [Question(text, ("bees",), tuple(passages[n] for n in order)) for text, order in ASKED]


@pytest.fixture(scope="module")
def forced() -> Iterator[ForcedEngine]:
    with start_forced_engine(os.environ["CACHECRAFT_TEST_MODEL"], **OPTIONS) as started:
        yield started


@pytest.fixture(scope="module")
def variants() -> list[Variant]:
    return make_variants(POLICIES, RATIOS)


@pytest.fixture(scope="module")
def measured(forced, questions, variants) -> Measurer:
    measurer = Measurer(forced, questions, Records(None, "run"), max_tokens=8, min_run=1)
    for number in range(len(questions)):
        measurer.measure(number, variants)
    return measurer


def records(measurer: Measurer, variant: Variant):
    return [measurer.record(number, variant) for number in range(len(ASKED))]


def mean_kl(measurer: Measurer, variant: Variant) -> float:
    values = [value for record in records(measurer, variant) for value in record.kl]
    return sum(values) / len(values)


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"none", "all"}))
def test_divergence_falls_as_the_ratio_rises(measured, policy):
    found = [
        mean_kl(measured, Variant("none", 0.0)),
        *(mean_kl(measured, Variant(policy, ratio)) for ratio in RATIOS[1:-1]),
        mean_kl(measured, Variant("all", 1.0)),
    ]
    assert found[-1] < 1e-6
    for less, more in pairwise(found):
        assert more < 1.1 * less, found
    assert found[-2] < 0.6 * found[0]


def test_all_is_full_prefill(measured):
    for full, ours in zip(records(measured, FULL), records(measured, Variant("all", 1.0)), strict=True):
        assert max(ours.kl) < 1e-6
        assert (ours.answer, ours.token_ids, all(ours.agrees)) == (full.answer, full.token_ids, True)
        assert ours.share == full.share == 1.0


def test_the_share_is_what_was_run(measured, questions):
    assert all(record.share == 0.0 for record in records(measured, Variant("none", 0.0)))
    assert all(record.share == 0.0 for record in records(measured, NO_CONTEXT))
    for ratio in RATIOS[1:-1]:
        for record in records(measured, Variant("first", ratio)):
            assert 0.5 * ratio < record.share < ratio + 0.01  # the head is reused exactly


def test_no_context_is_the_farthest_away(measured):
    assert mean_kl(measured, NO_CONTEXT) > mean_kl(measured, Variant("none", 0.0))


def test_an_exact_prefix_is_reused_after_reordering(measured):
    found = records(measured, EXACT_PREFIX)
    assert found[0].share == 1.0
    assert found[0].answer == measured.record(0, FULL).answer
    assert any(record.share < 1.0 for record in found)


def test_what_is_forced_is_said(forced):
    from cachecraft_rag import ChunkPrompt

    prompt = ChunkPrompt.chat([passage(9100, 3)], "Who keeps bees?")
    free = forced.say(prompt, 6, reuse=False, fresh=True)
    assert free.logits.shape[0] == len(free.answer.token_ids)
    assert tuple(free.logits.argmax(axis=-1)) == free.answer.token_ids
    other = [token + 1 for token in free.answer.token_ids]
    said = forced.force(prompt, other, reuse=False, fresh=True)
    assert said.answer.token_ids == tuple(other)
    assert abs(said.logits[0] - free.logits[0]).max() < 1e-2


def test_many_at_once_say_what_one_after_the_other_says(forced, questions, measured, variants):
    together = Measurer(forced, questions, Records(None, "run"), max_tokens=8, min_run=1, together=16)
    for number in range(3):
        together.measure(number, variants)
        for variant in (FULL, *variants):
            alone, ours = measured.record(number, variant), together.record(number, variant)
            assert ours.kl == pytest.approx(alone.kl, abs=1e-4)
            assert (ours.token_ids, ours.answer, ours.agrees) == (alone.token_ids, alone.answer, alone.agrees)
            if variant != EXACT_PREFIX:  # this engine has seen the questions before
                assert ours.share == alone.share
                assert (ours.seconds is None) == (variant != FULL)


def test_times_are_added_later_and_nothing_else_is_done_again(forced, questions, variants, monkeypatch):
    records = Records(None, "run")
    Measurer(forced, questions, records, max_tokens=8, min_run=1, together=16).measure(1, variants)
    later = Measurer(forced, questions, records, max_tokens=8, min_run=1)
    before = {variant: later.record(1, variant) for variant in variants}
    assert all(record.first_token_ratio is None for record in before.values())
    monkeypatch.setattr(forced, "say", pytest.fail)
    monkeypatch.setattr(forced, "submit_forced", pytest.fail)
    later.measure(1, variants, timed=True)
    after = {variant: later.record(1, variant) for variant in variants}
    assert {v: replace(r, seconds=None, full_seconds=None) for v, r in after.items()} == before
    ratios = {variant: record.first_token_ratio for variant, record in after.items()}
    assert ratios[NAIVE] < ratios[Variant("random", 0.9)] < 2
    assert ratios[Variant("all", 1.0)] > 0.5  # nothing of the answers before was found again
    assert ratios[EXACT_PREFIX] > ratios[NO_CONTEXT]
    monkeypatch.setattr(forced.engine, "generate", pytest.fail)
    later.measure(1, variants, timed=True)


def test_kept_logits_stand_for_full_prefill(forced, questions, tmp_path, monkeypatch):
    records, first = Records(None, "run"), [NAIVE, Variant("first", 0.3)]
    kept = KeptLogits(tmp_path / "logits", "run")
    Measurer(forced, questions, records, kept, max_tokens=8, min_run=1).measure(2, first)
    sent = []
    monkeypatch.setattr(forced, "say", pytest.fail)
    submit = forced.submit_forced
    monkeypatch.setattr(
        forced, "submit_forced", lambda *args, **options: sent.append(options) or submit(*args, **options)
    )
    later = Measurer(forced, questions, records, kept, max_tokens=8, min_run=1)
    later.measure(2, [*first, Variant("random", 0.3), Variant("all", 1.0)])
    assert [options["policy"] for options in sent] == ["random", "all"]
    assert max(later.record(2, Variant("all", 1.0)).kl) < 1e-6
    assert later.record(2, Variant("random", 0.3)).seconds is None  # there is no full prefill to compare it with


class _InterruptedError(Exception):
    pass


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_result(questions, tmp_path, monkeypatch):
    """Each run has an engine of its own; the second is cut in the middle of its second question.

    Variants of the first question's passages are still there by then in the first run only.
    """
    data = tmp_path / "data.jsonl"
    save_questions(data, questions)
    ways = Ways(load_questions(data, limit=2), 1)
    assert ways.stored_order(1)[0].id in [chunk.id for chunk in ways.stored_order(0)[1:]]

    def run(records):
        options = {**OPTIONS, "limit": 2, "max_tokens": 6, "records": records, "progress": False}
        model = os.environ["CACHECRAFT_TEST_MODEL"]
        return bench_quality(model, data, policies=["first", "blend-variants"], ratios=[0.3], **options)

    whole = run(tmp_path / "whole.jsonl")
    add, counted = Records.add, []

    def interrupt(self, *arguments):
        if len(counted) == 8:
            raise _InterruptedError
        counted.append(arguments)
        add(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Records, "add", interrupt)
        with pytest.raises(_InterruptedError):
            run(tmp_path / "cut.jsonl")
    resumed = run(tmp_path / "cut.jsonl")
    assert len((tmp_path / "cut.jsonl").read_text().splitlines()) == 2 * 6
    assert flat(resumed) == pytest.approx(flat(whole), rel=1e-4, abs=1e-5, nan_ok=True)  # other batch shapes


def flat(result) -> list[float]:
    """All numbers of a result but the timings."""
    variants = [{**variant, "first_token_ratio": None, "timed": None} for variant in result.to_dict()["variants"]]
    values = [value for variant in variants for entry in variant.values() for value in _leaves(entry)]
    return [*values, result.full_fails, result.context_tokens, result.questions]


def _leaves(entry) -> list[float]:
    if isinstance(entry, dict | list | tuple):
        values = entry.values() if isinstance(entry, dict) else entry
        return [leaf for value in values for leaf in _leaves(value)]
    return [] if isinstance(entry, str) else [math.nan if entry is None else entry]
