import json
import logging

import pytest

from cachecraft_rag import ChunkEngine, drift
from cachecraft_rag.drift import LEAST, WINDOW, DriftGuard, Skipped
from cachecraft_rag.errors import InvalidInput


def feed(guard, count, agreed, tokens=10):
    for _ in range(count):
        guard.add(guard.ratio, tokens, agreed)


def test_it_rises_a_step_once_enough_samples_say_so(caplog):
    guard = DriftGuard(1.0, 0.95, 0.15)
    feed(guard, LEAST - 1, 9)
    assert (guard.ratio, caplog.records) == (0.15, [])
    feed(guard, 1, 9)
    assert guard.ratio == 0.2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "90.0% of their tokens" in record.message
    assert "from 0.15 to 0.2" in record.message


def test_each_step_rests_on_samples_of_its_own():
    guard = DriftGuard(1.0, 0.95, 0.15)
    feed(guard, LEAST, 0)
    assert guard.stats()["window_samples"] == 0
    for _ in range(LEAST):
        guard.add(0.15, 10, 0)  # were under way when it rose
    assert guard.ratio == 0.2
    feed(guard, LEAST - 1, 0)
    assert guard.ratio == 0.2
    feed(guard, 1, 0)
    assert guard.ratio == 0.25
    assert guard.stats()["steps"] == 2


def test_it_never_falls_and_ends_at_one(caplog):
    guard = DriftGuard(1.0, 0.95, 0.92)
    feed(guard, LEAST, 0)
    feed(guard, LEAST, 0)
    assert guard.ratio == 1.0
    feed(guard, 3 * LEAST, 0)
    feed(guard, 3 * LEAST, 10)
    assert guard.ratio == 1.0
    assert len(caplog.records) == guard.stats()["steps"] == 2


def test_what_reaches_the_target_changes_nothing():
    guard = DriftGuard(1.0, 0.95, 0.15)
    for _ in range(5 * LEAST):
        feed(guard, 1, 10)
        feed(guard, 1, 9)
    assert guard.ratio == 0.15
    stats = guard.stats()
    assert (stats["agreement"], stats["samples"], stats["tokens"], stats["agreed_tokens"]) == (0.95, 200, 2000, 1900)


def test_only_the_newest_samples_decide():
    guard = DriftGuard(1.0, 0.9, 0.15)
    feed(guard, 10 * WINDOW, 10)
    feed(guard, WINDOW // 10, 0)
    assert (guard.ratio, guard.stats()["window_agreement"]) == (0.15, 0.9)
    feed(guard, 1, 0)
    assert guard.ratio == 0.2


def test_long_answers_count_by_their_tokens():
    guard = DriftGuard(1.0, 0.9, 0.15)
    feed(guard, LEAST - 1, 1, tokens=1)
    guard.add(0.15, 100, 50)
    assert guard.ratio == 0.2


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_share_of_answers_is_picked(share):
    guard = DriftGuard(share, 0.9, 0.15)
    picked = sum(guard.pick() for _ in range(4000))
    assert picked == pytest.approx(4000 * share, abs=150 if 0 < share < 1 else 0)


def test_its_numbers_are_json_and_say_what_was_left_out():
    guard = DriftGuard(1.0, 0.9, 0.15)
    for reason in (Skipped.BUSY, Skipped.BUSY, Skipped.SAMPLED):
        guard.skip(reason)
    stats = json.loads(json.dumps(guard.stats()))
    assert stats["skipped"] == {**dict.fromkeys(map(str, Skipped), 0), "sampled": 1, "busy": 2}
    assert {"nothing_reused", "constrained", "aborted", "failed"} < stats["skipped"].keys()
    assert (stats["agreement"], stats["window_agreement"], stats["samples"]) == (None, None, 0)
    assert (stats["ratio"], stats["target"]) == (0.15, 0.9)
    assert drift.STEP == 0.05


@pytest.mark.parametrize("policy", ["none", "all"])
def test_with_a_policy_that_follows_no_ratio_it_is_refused_before_anything_starts(policy):
    with pytest.raises(InvalidInput, match=rf"drift_guard=0\.1 raises the ratio, but policy '{policy}'.*'blend'"):
        ChunkEngine("no-such-model", policy=policy, drift_guard=0.1)
