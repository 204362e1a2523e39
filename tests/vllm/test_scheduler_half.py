"""The life of requests in the scheduler half, against a worker that does what it is told."""

from dataclasses import replace

import numpy as np
import pytest

from cachecraft_rag.report import Outcome
from cachecraft_rag.reuse import get_policy
from cachecraft_rag.vllm.protocol import WorkerMetadata, prompt_digest
from cachecraft_rag.vllm.salts import cache_salt

HEAD = (1, 2, 3, 4)
A, B, C = (tuple(range(start, start + 20)) for start in (100, 200, 300))
QUESTION = (7, 8, 9)
SECRET = "secret"


def outcomes(report):
    return [chunk.outcome for chunk in report.chunks]


def test_all_but_one_token_is_promised_asynchronously(engine):
    request = engine.arrive(HEAD, A, QUESTION)
    assert engine.half.get_num_new_matched_tokens(request, 0) == (26, True)
    assert engine.half.get_num_new_matched_tokens(request, 16) == (10, True)
    assert engine.half.get_num_new_matched_tokens(request, 26) == (0, False)


def test_a_preempted_request_is_promised_its_whole_prompt(engine):
    request = engine.arrive(HEAD, A, QUESTION)
    engine.schedule(request)
    engine.step()
    request.num_tokens += 5
    assert engine.half.get_num_new_matched_tokens(request, 0) == (27, True)
    assert engine.half.get_num_new_matched_tokens(request, 32) == (0, False)
    engine.schedule(request)
    (message,) = engine.step().plans
    assert message.plan.end == 27
    assert message.plan_id == (request.request_id, 2)
    assert engine.report(request).replans == 1
    assert engine.check() == []


def test_life_of_a_miss_and_of_a_hit(engine):
    first = engine.serve(HEAD, A, B, QUESTION)
    assert outcomes(first) == [Outcome.MISS, Outcome.MISS]
    assert first.computed_tokens == first.prompt_tokens == 47
    second = engine.serve(HEAD, A, QUESTION)
    assert outcomes(second) == [Outcome.HIT]
    assert second.chunks[0].exact
    assert second.computed_tokens == len(QUESTION)
    moved = engine.serve(HEAD, C, A, QUESTION, ratio=0.1)
    assert outcomes(moved) == [Outcome.MISS, Outcome.HIT]
    assert moved.computed_tokens == 20 + 2 + 3
    assert engine.check() == []


def test_a_prefix_cache_hit_is_counted(engine):
    engine.prewarm(A, B)
    report = engine.serve(HEAD, A, B, QUESTION, prefix=32)
    assert report.prefix_cache_tokens == 32
    assert report.computed_tokens == len(QUESTION)
    assert sum(chunk.recomputed for chunk in report.chunks) == 0
    all_but_one = engine.serve(HEAD, A, B, QUESTION, prefix=46)
    assert (all_but_one.prefix_cache_tokens, all_but_one.computed_tokens) == (46, 1)
    assert outcomes(all_but_one) == [Outcome.HIT, Outcome.HIT]
    assert engine.check() == []


def test_a_plan_names_only_what_lies_behind_the_prefix_cache(engine):
    engine.prewarm(A, B)
    request = engine.arrive(HEAD, A, B, QUESTION)
    engine.schedule(request, prefix=32)
    (message,) = engine.half.take_metadata().plans
    assert message.plan.compute.min() >= 32
    assert all(span.start >= 32 for span in message.plan.staged)
    assert message.token_ids.tolist() == [*HEAD, *A, *B, *QUESTION][:46]
    assert message.block_ids.tolist() == list(range(100))


def test_a_request_waits_for_what_another_computes(engine):
    first = engine.arrive(HEAD, A, QUESTION)
    engine.schedule(first)
    second = engine.arrive(HEAD, B, A, QUESTION)
    assert engine.half.get_num_new_matched_tokens(second, 0) == (None, False)
    exact = engine.arrive(HEAD, B, A, QUESTION, ratio=1.0)
    assert engine.half.get_num_new_matched_tokens(exact, 0) == (46, True), "nothing stored is used at ratio 1.0"
    engine.step()
    engine.schedule(second)
    engine.step()
    assert outcomes(engine.report(second)) == [Outcome.MISS, Outcome.HIT]


def test_a_request_does_not_wait_for_what_was_cancelled(engine):
    first = engine.arrive(HEAD, A, QUESTION)
    engine.schedule(first)
    engine.step(finish=False)
    engine.finish(first)
    engine.step()
    assert engine.half.get_num_new_matched_tokens(engine.arrive(HEAD, B, A, QUESTION), 0) == (46, True)
    assert engine.ask({"op": "stats"})["used_bytes"] == 0
    assert engine.check() == []


@pytest.mark.parametrize("when", ["before the worker knows", "while it runs", "after it ended"])
def test_an_aborted_request_leaves_nothing_behind(engine, when):
    engine.prewarm(B)
    used = engine.ask({"op": "stats"})["used_bytes"]
    request = engine.arrive(HEAD, C, B, QUESTION)
    engine.schedule(request)
    if when == "while it runs":
        engine.step(finish=False)
    elif when == "after it ended":
        engine.step()
    assert engine.finish(request) is not None
    engine.step()
    engine.step()
    stats = engine.ask({"op": "stats"})
    assert stats["used_bytes"] - used in (0, len(C) * engine.bytes_per_token)
    assert stats["used_bytes"] == stats["store_bytes"] == sum(engine.tensors.values())
    assert engine.check() == []
    assert all(entry.users == 0 and entry.ready for entry in engine.half._index)


def test_deleted_while_a_plan_reads_it(engine):
    engine.prewarm(A, B)
    request = engine.arrive(HEAD, B, A, QUESTION)
    engine.schedule(request)
    assert set(engine.ask({"op": "delete"})["deleted"]) == {"id-100", "id-200"}
    report = engine.report(request)
    assert outcomes(report) == [Outcome.HIT, Outcome.HIT]
    engine.step()
    assert engine.tensors == {}
    assert engine.check() == []


def test_the_check_knows_that_tensors_are_freed_one_step_later(engine):
    """A request is deleted from under, then aborted: the last step's frees wait for the next step."""
    engine.prewarm(A, B)
    request = engine.arrive(HEAD, B, A, QUESTION)
    engine.schedule(request)
    engine.step(finish=False)
    engine.half._index.delete(lambda entry: True)
    engine.finish(request)
    engine.step()
    assert engine.check() == []


def test_deleted_while_it_is_computed(engine):
    request = engine.arrive(HEAD, A, QUESTION)
    engine.schedule(request)
    engine.step(finish=False)
    assert engine.ask({"op": "delete"})["deleted"] == ["id-100"]
    engine.step()
    engine.finish(request)
    engine.step()
    assert engine.tensors == {}
    assert outcomes(engine.serve(HEAD, A, QUESTION)) == [Outcome.MISS]


def test_lost_tensors_are_refused_once_and_stored_again(engine):
    engine.prewarm(A, B)
    engine.tensors.clear()
    report = engine.serve(HEAD, B, A, QUESTION, ratio=0.5)
    assert outcomes(report) == [Outcome.REFUSED, Outcome.REFUSED]
    assert "gone" in report.chunks[0].reason
    assert outcomes(engine.serve(HEAD, B, QUESTION)) == [Outcome.MISS]
    assert outcomes(engine.serve(HEAD, B, QUESTION)) == [Outcome.HIT]


def test_a_full_store_evicts_the_oldest_and_its_tensors(make_fake_engine):
    small = make_fake_engine(store_tokens=4 + 2 * 20)
    small.prewarm(A, B)
    small.prewarm(C)
    assert sum(small.tensors.values()) <= 44 * small.bytes_per_token
    stats = small.ask({"op": "stats"})
    assert stats["store_bytes"] == stats["used_bytes"] <= stats["capacity_bytes"]
    assert stats["evicted"] > 0
    assert small.check() == []


def test_a_plain_request_is_none_of_our_business(engine):
    request = engine.arrive(HEAD, A, QUESTION)
    engine.finish(request)
    request.kv_transfer_params = None
    engine.half.on_new_request(request)
    assert engine.half.get_num_new_matched_tokens(request, 0) == (0, False)
    assert engine.finish(request) is None


def test_a_request_that_ends_before_it_was_scheduled_says_so(engine):
    report = engine.report(engine.arrive(HEAD, A, QUESTION))
    assert outcomes(report) == [Outcome.REFUSED]
    assert "before it was scheduled" in report.chunks[0].reason


def test_prewarming_what_is_there_computes_nothing(engine):
    engine.prewarm(A)
    request = engine.arrive(HEAD, A, A[-1:], prewarm=True, policy="none", ratio=0.0)
    engine.schedule(request)
    (message,) = engine.step().plans
    assert message.plan.compute.size == 0
    assert message.plan.staged == ()
    assert outcomes(engine.report(request)) == [Outcome.HIT]


def test_an_unknown_operation_is_an_error_and_not_a_crash(engine):
    assert "explode" in engine.ask({"op": "explode"})["error"]


def test_stray_reports_do_not_matter(engine):
    engine.half.on_worker_report(WorkerMetadata(stored=[99]))
    assert engine.check() == []


def test_many_random_requests_leave_clean_books(make_fake_engine):
    engine = make_fake_engine(store_tokens=70)
    rng = np.random.default_rng(5)
    running = []
    for _ in range(400):
        action = rng.integers(6)
        if action < 2:
            order = [(A, B, C)[n] for n in rng.permutation(3)[: rng.integers(1, 4)]]
            running.append(engine.arrive(HEAD, *order, QUESTION, ratio=float(rng.choice([0.0, 0.2, 1.0]))))
            running[-1].scheduled = False
        elif action == 2 and running:
            request = running.pop(rng.integers(len(running)))
            engine.finish(request)
        elif action == 3:
            engine.half._index.delete(lambda entry: entry.chunk_id == f"id-{100 * rng.integers(1, 4)}")
        elif action == 4:
            engine.step(finish=False)
        else:
            engine.step()
        for request in running:
            if not request.scheduled and rng.random() < 0.5:
                request.scheduled = engine.schedule(request, int(rng.choice([0, 4, 16])))[0] is not None
        assert engine.half._index.check() == []
        assert engine.half._index.used_bytes <= 70 * engine.bytes_per_token
    for request in running:
        engine.finish(request)
    engine.step()
    engine.step()
    assert engine.half._in_flight == {}
    assert engine.half._requests == {}
    assert all(entry.users == 0 and entry.ready for entry in engine.half._index)
    assert engine.half._index.used_bytes == sum(engine.tensors.values())


@pytest.mark.parametrize("policy", ["first", "random", "question", "blend", "deviation"])
@pytest.mark.parametrize("ratio", [0.2, 0.9])
def test_each_use_counts_by_what_is_recomputed_whatever_the_policy(engine, policy, ratio, monkeypatch):
    engine.prewarm(A, B, C)
    counted = []
    monkeypatch.setattr(engine.half._index, "touch", lambda entry, share: counted.append((entry.chunk_id, share)))
    params, ids = engine.params(HEAD, C, A, QUESTION, policy=policy, ratio=ratio)
    digest = prompt_digest(get_policy(policy), ratio, np.array(ids, dtype=np.int32))
    salt = cache_salt(SECRET, replace(params, prompt=digest))
    engine.schedule(engine.arrive(HEAD, C, A, QUESTION, policy=policy, ratio=ratio, salt=salt))
    assert counted == [(None, 0.0), ("id-300", 0.0), ("id-100", pytest.approx(ratio))]  # the first one is exact
