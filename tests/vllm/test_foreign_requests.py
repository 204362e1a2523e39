"""Requests that did not come from our front end: refused with a reason, never a crash, never another's data."""

import pytest

from cachecraft_rag.report import Outcome
from cachecraft_rag.vllm.protocol import RequestParams
from cachecraft_rag.vllm.salts import cache_salt

SECRET = "secret"  # of the engine in conftest
HEAD = (1, 2, 3, 4)
A = tuple(range(100, 120))
QUESTION = (7, 8, 9)


def outcomes(report):
    return [chunk.outcome for chunk in report.chunks]


@pytest.mark.parametrize("salt", ["", "mine", "é"])
def test_a_wrong_salt_is_refused(engine, salt):
    engine.prewarm(A)
    request = engine.arrive(HEAD, A, QUESTION, salt=salt)
    assert engine.schedule(request) == (0, False)
    assert engine.step().plans == []
    report = engine.report(request)
    assert outcomes(report) == [Outcome.REFUSED]
    assert "cache_salt" in report.chunks[0].reason


def wire(**changes):
    params = RequestParams("tenant", "first", 0.2, 1, ((0, 27, "id", None, None),))
    return {**params.to_wire(), **changes}


GARBAGE = {
    "number": 3,
    "text": "text",
    "list": [1],
    "empty": {},
    "policy": wire(policy="best"),
    "ratio": wire(ratio=-1),
    "infinite": wire(segments=[[0, float("inf"), None, None, None]]),
    "tiling": wire(segments=[[0, 5, None, None, None]]),
    "document": wire(segments=[[0, 27, "id", None, ["a.md"]]]),
    "control text": wire(control="stats"),
    "control list": wire(control=[1]),
    "control without a list": wire(control={"op": "missing"}),
    "control with a bad list": wire(control={"op": "missing", "chunks": [1]}),
    "pin without a value": wire(control={"op": "pin", "chunk_ids": []}),
    "chunk ids number": wire(control={"op": "delete", "chunk_ids": 3}),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_never_raises_and_is_answered(engine, garbage):
    try:  # what can be read carries the right salt, so that it is not refused for that
        salt = cache_salt(SECRET, RequestParams.from_wire(garbage, 27))
    except ValueError:
        salt = None
    request = engine.arrive(HEAD, A, QUESTION, wire=garbage, salt=salt)
    engine.schedule(request)
    engine.step()
    answer = engine.finish(request)["cachecraft"]
    assert answer.keys() & {"report", "answer"}
    assert engine.check() == []


@pytest.mark.parametrize("params", ["text", [1], 3])
def test_kv_transfer_params_that_are_no_mapping_are_a_plain_request(engine, params):
    request = engine.arrive(HEAD, A, QUESTION)
    engine.finish(request)
    request.kv_transfer_params = params
    engine.half.on_new_request(request)
    assert engine.schedule(request) == (0, False)
    assert engine.finish(request) is None


def test_a_stranger_cannot_give_orders_to_the_store(engine):
    """On a server anyone may send `kv_transfer_params`; only who knows the secret may delete and pin."""
    engine.prewarm(A)
    params = RequestParams("tenant", "none", 0.0, 1, (), control={"op": "delete"})
    request = engine.arrive((1,), wire=params.to_wire(), salt="mine")
    engine.schedule(request)
    engine.step()
    engine.finish(request)
    assert outcomes(engine.serve(HEAD, A, QUESTION)) == [Outcome.HIT]
