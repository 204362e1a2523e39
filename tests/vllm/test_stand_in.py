"""Chunks that are stored as computed behind stand-in passages."""

import numpy as np
import pytest

HEAD = (1, 2, 3, 4)
STAND_IN = (51, 52, 53, 54, 55)
A, B, C = (tuple(range(start, start + 20)) for start in (100, 200, 300))
QUESTION = (7, 8, 9)


@pytest.fixture
def start(make_fake_engine):
    """`start(...)`: an engine with stand-in passages."""
    return lambda **options: make_fake_engine(stand_in_token_ids=STAND_IN, **options)


@pytest.fixture
def engine(start):
    return start()


def arrive(engine, chunk, **options):
    """The request that stores a chunk."""
    pieces = (HEAD + STAND_IN, chunk, chunk[-1:])
    return engine.arrive(*pieces, prewarm=True, policy="none", ratio=0.0, **options)


def prewarm(engine, *chunks, **options):
    for chunk in chunks:
        request = arrive(engine, chunk, **options)
        engine.schedule(request)
        engine.step()
        engine.finish(request)
        engine.step()


def outcomes(report):
    return [chunk.outcome.value for chunk in report.chunks]


def computed(metadata):
    """Positions that the model runs, of each plan that was sent."""
    return [message.plan.compute.tolist() for message in metadata.plans]


def test_the_passages_are_computed_once(engine):
    first = arrive(engine, A)
    engine.schedule(first)
    assert computed(engine.step()) == [list(range(29))]
    engine.finish(first)
    second = arrive(engine, B)
    engine.schedule(second)
    assert computed(engine.step()) == [list(range(9, 29))]
    assert engine.check() == []


def test_they_are_waited_for_while_another_computes_them(engine):
    first, second = arrive(engine, A), arrive(engine, B)
    engine.schedule(first)
    assert engine.schedule(second) == (None, False)
    engine.step()
    assert engine.schedule(second) == (29, True)
    assert computed(engine.step()) == [list(range(9, 29))]


def test_the_head_is_an_entry_of_its_own(engine):
    prewarm(engine, A)
    request = engine.arrive(HEAD, A, QUESTION, policy="none", ratio=0.0)
    engine.schedule(request)
    assert computed(engine.step()) == [[24, 25]]


def test_another_tenant_has_its_own(engine):
    first, other = arrive(engine, A), arrive(engine, A, namespace="other")
    engine.schedule(first)
    assert engine.schedule(other) == (29, True)


@pytest.mark.parametrize("policy", ["first", "cachecraft", "random"])
def test_a_chunk_right_behind_the_head_is_repaired_as_the_others_are(engine, policy):
    prewarm(engine, A, B)
    report = engine.serve(HEAD, A, B, QUESTION, policy=policy, ratio=0.2)
    first, second = report.chunks
    assert (first.recomputed, second.recomputed) == (4, 4)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_what_is_stored_serves_at_any_place_and_is_never_taken_for_exact(engine, order):
    prewarm(engine, A, B)
    report = engine.serve(HEAD, *order, QUESTION, policy="none", ratio=0.0)
    assert outcomes(report) == ["HIT", "HIT"]
    assert [chunk.reason for chunk in report.chunks] == [
        "moved by -5 tokens, other prefix",
        "moved by +15 tokens, other prefix",
    ]


def test_the_first_chunk_of_a_prompt_is_repaired_too(engine):
    prewarm(engine, A)
    request = engine.arrive(HEAD, A, QUESTION, policy="first", ratio=0.2)
    engine.schedule(request)
    assert computed(engine.step()) == [[4, 5, 6, 7, 24, 25]]


def test_behind_the_passages_themselves_it_is_exact(engine):
    prewarm(engine, A)
    report = engine.serve(HEAD + STAND_IN, A, QUESTION)
    assert [chunk.reason for chunk in report.chunks] == ["same prefix as when it was stored"]


def test_nothing_is_stored_from_a_request_that_only_looks_like_a_prewarm(make_fake_engine):
    """Its passages are chunks that were found, moved and repaired: what follows is not as a full prefill has it."""
    engine = make_fake_engine(stand_in_token_ids=B)
    for chunk in (A, B):
        engine.serve(HEAD + B, chunk, chunk[-1:], prewarm=True, policy="none", ratio=0.0)
    report = engine.serve(HEAD, B, C, QUESTION, policy="first", ratio=0.2)
    assert outcomes(report) == ["HIT", "MISS"]
    assert report.chunks[1].reason == "not in the store"
    assert engine.ask({"op": "missing", "chunks": [["id-300", "id-300", None]]})["missing"] == [0]


def test_where_memory_holds_the_chunk_or_the_passages_it_is_the_chunk(start):
    engine = start(store_tokens=24)
    for chunk in (A, B):
        prewarm(engine, chunk)
        assert outcomes(engine.serve(HEAD, chunk, QUESTION)) == ["HIT"]
    assert engine.check() == []


def test_a_missed_first_chunk_is_not_stored_from_its_own_request(engine):
    report = engine.serve(HEAD, A, QUESTION)
    assert outcomes(report) == ["MISS"]
    assert report.chunks[0].reason == "not in the store"
    assert outcomes(engine.serve(HEAD, A, QUESTION)) == ["MISS"]


def test_the_head_alone_is_still_reused(engine):
    engine.serve(HEAD, A, QUESTION)
    request = engine.arrive(HEAD, A, QUESTION)
    engine.schedule(request)
    assert computed(engine.step()) == [list(range(4, 26))]


def test_a_prewarm_leaves_no_variant(start):
    engine = start(keep_variants=2)
    prewarm(engine, A, B)
    assert engine.ask({"op": "stats"})["variants"] == 0
    request = engine.arrive(HEAD, A, B, QUESTION, policy="all", ratio=1.0)
    engine.schedule(request)
    (message,) = engine.half.take_metadata().plans
    assert [span.start for span in message.plan.captures if span.pieces] == [24]  # this one leaves one of B


def test_what_does_not_fit_behind_them_is_refused_with_the_reason(start):
    engine = start()
    engine.half._classifier._longest = 19
    report = engine.serve(HEAD, A, QUESTION)
    assert outcomes(report) == ["REFUSED"]
    assert report.chunks[0].reason.startswith("20 tokens do not fit into the model's context behind head and stand-in")


@pytest.mark.parametrize(("max_model_len", "outcome"), [(31, "MISS"), (30, "REFUSED")])
def test_what_a_prewarm_could_not_hold_is_refused_and_nothing_shorter(start, max_model_len, outcome):
    """Head and passages are 9 tokens, the chunk 20; its request has one more, and must be shorter than the context."""
    classifier = start(max_model_len=max_model_len).half._classifier
    params, ids = start().params(HEAD, A, QUESTION)
    (finding,) = (
        finding
        for finding in classifier.classify(params, np.array(ids, dtype=np.int32), store=False, lower=0, upper=26)
        if finding.outcome is not None
    )
    assert finding.outcome.value == outcome


def test_stores_of_other_passages_are_strangers(make_fake_engine, start, tmp_path):
    ours = start(store_dir=tmp_path)
    ours.step()
    prewarm(ours, A)
    others = [make_fake_engine(store_dir=tmp_path), make_fake_engine(store_dir=tmp_path, stand_in_token_ids=(51, 52))]
    for other in others:
        other.step()
        assert outcomes(other.serve(HEAD, A, QUESTION)) == ["MISS"]
    again = start(store_dir=tmp_path)
    again.step()
    assert outcomes(again.serve(HEAD, A, QUESTION)) == ["HIT"]


def test_after_a_restart_the_passages_come_from_the_disk(start, tmp_path):
    first = start(store_dir=tmp_path)
    first.step()
    prewarm(first, A)
    again = start(store_dir=tmp_path)
    again.step()
    request = arrive(again, B)
    again.schedule(request)
    plans = computed(again.step())
    for _ in range(3):  # reads come first
        if plans:
            break
        again.schedule(request)
        plans = computed(again.step())
    assert plans == [list(range(9, 29))]
