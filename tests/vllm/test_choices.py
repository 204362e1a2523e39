from dataclasses import replace

import numpy as np

from cachecraft_rag.reuse import get_policy
from cachecraft_rag.vllm import choices
from cachecraft_rag.vllm.choices import RememberedChoices
from cachecraft_rag.vllm.protocol import PlanResult, WorkerMetadata, prompt_digest
from cachecraft_rag.vllm.salts import cache_salt

HEAD = (1, 2, 3, 4)
A, B = (tuple(range(first, first + 20)) for first in (100, 200))
QUESTION = (7, 8, 9)


def test_the_newest_are_remembered(monkeypatch):
    monkeypatch.setattr(choices, "_LIMIT", 2)
    remembered = RememberedChoices()
    for salt in ("a", "b"):
        remembered.add(salt, 0, np.array([1, 2]))
    remembered.get("a")
    remembered.add("c", 0, np.array([3]))
    assert remembered.get("a").tolist() == [1, 2]
    assert remembered.get("b") is None
    assert remembered.get("c").tolist() == [3]


def test_what_does_not_cover_the_prompt_is_not_remembered():
    remembered = RememberedChoices()
    remembered.add("a", 4, np.array([5]))
    remembered.add(None, 0, np.array([5]))
    assert remembered.get("a") is remembered.get(None) is None


def ask(engine, *pieces):
    params, ids = engine.params(*pieces, policy="question")
    digest = prompt_digest(get_policy("question"), params.ratio, ids)
    salt = cache_salt("secret", replace(params, prompt=digest))
    return engine.arrive(*pieces, policy="question", salt=salt)


def plan_of(engine, request, prefix=0):
    engine.schedule(request, prefix)
    (message,) = engine.half.take_metadata().plans
    return message


def test_the_same_prompt_again_is_repaired_at_the_same_places(engine):
    for chunk in (A, B):
        request = engine.arrive(HEAD, chunk, QUESTION, prewarm=True)
        engine.schedule(request)
        engine.step()
        engine.finish(request)
    first = ask(engine, HEAD, B, A, QUESTION)
    message = plan_of(engine, first)
    assert message.plan.pending is not None
    chosen = np.array([30, 31, 40, 44, 45])
    result = PlanResult(0.0, 0.0, 2, 5, chosen=chosen)
    engine.half.on_worker_report(WorkerMetadata({message.plan_id: result}))
    engine.finish(first)
    again = plan_of(engine, ask(engine, HEAD, B, A, QUESTION), prefix=32)
    assert again.plan.pending is None
    assert again.plan.compute.tolist() == [40, 44, 45]
    assert plan_of(engine, ask(engine, HEAD, B, A, (7, 8, 5))).plan.pending is not None
