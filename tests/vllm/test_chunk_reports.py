import numpy as np

from cachecraft_rag.report import Outcome
from cachecraft_rag.reuse import Plan, PlanSegment
from cachecraft_rag.vllm.chunk_reports import chunk_reports, refused_reports
from cachecraft_rag.vllm.classify import Finding
from cachecraft_rag.vllm.protocol import RequestParams

SEGMENTS = (
    (0, 4, None, None, None),
    (4, 14, "a", None, "a.md"),
    (14, 24, "b", None, None),
    (24, 27, None, None, None),
)


def params(policy="first", ratio=0.2):
    return RequestParams("tenant", policy, ratio, 1, SEGMENTS)


def plan(compute, lower=0, end=26):
    return Plan(lower, end, np.array(sorted(compute), dtype=np.int64), (), ())


def findings(a=Outcome.HIT, b=Outcome.HIT, exact_a=True, handles=(7, 8)):
    pieces = [
        (0, 4, None, None, 0, False),
        (4, 14, a, handles[0] if a is Outcome.HIT else None, 1, exact_a and a is Outcome.HIT),
        (14, 24, b, handles[1] if b is Outcome.HIT else None, 2, False),
        (24, 27, None, None, 3, False),
    ]
    return [
        Finding(PlanSegment(start, stop, handle=handle, exact=exact), outcome, "why", chunk)
        for start, stop, outcome, handle, chunk, exact in pieces
    ]


def report(found, compute, *, prefix=0, missing=(), end=26, **kind):
    return chunk_reports(
        params(**kind), found, plan(compute, prefix, end), prefix, dict.fromkeys(missing, "its stored KV was gone")
    )


def test_one_line_for_each_chunk_in_order():
    a, b = report(findings(), [0, 1, 2, 3, 14, 15, 24, 25])
    assert (a.chunk_id, a.offset, a.tokens, a.recomputed, a.exact, a.document_id) == ("a", 4, 10, 0, True, "a.md")
    assert (b.chunk_id, b.offset, b.tokens, b.recomputed, b.exact, b.document_id) == ("b", 14, 10, 2, False, None)
    assert (a.outcome, b.outcome, b.reason) == (Outcome.HIT, Outcome.HIT, "why")


def test_a_miss_is_exact_only_where_all_before_it_is():
    missed = findings(a=Outcome.MISS, b=Outcome.MISS)
    assert [line.exact for line in report(missed, range(26))] == [True, True]
    behind_a_repair = findings(exact_a=False, b=Outcome.MISS)
    compute = [*range(6), *range(14, 26)]
    assert [line.exact for line in report(behind_a_repair, compute)] == [False, False]


def test_ratio_one_is_exact_and_says_so():
    for kind in ({"policy": "all"}, {"ratio": 1.0}):
        a, b = report(findings(), range(26), **kind)
        assert a.exact
        assert b.exact
        assert "recomputed in full" in b.reason
        assert b.recomputed == 10


def test_what_the_prefix_cache_held():
    a, b = report(findings(exact_a=False), [18, 19, 24, 25], prefix=18)
    assert (a.outcome, a.recomputed) == (Outcome.HIT, 0)
    assert "prefix cache" in a.reason
    assert b.recomputed == 2
    assert "first 4 tokens were in vLLM's prefix cache" in b.reason
    assert not a.exact
    assert not b.exact


def test_a_miss_in_the_prefix_cache_counts_as_a_hit():
    a, _ = report(findings(a=Outcome.MISS), [18, 24, 25], prefix=14)
    assert (a.outcome, a.recomputed) == (Outcome.HIT, 0)


def test_a_chunk_with_a_first_part_in_the_prefix_cache_is_not_said_to_be_there_whole():
    _, b = report(findings(), [24, 25], prefix=18)
    assert "first 4 tokens were in vLLM's prefix cache" in b.reason


def test_all_in_the_prefix_cache_without_a_plan():
    a, b = chunk_reports(params(), findings(), None, 26, set())
    assert [(line.outcome, line.recomputed) for line in (a, b)] == [(Outcome.HIT, 0)] * 2


def test_the_last_token_is_counted_where_vllm_computes_it():
    found = findings()[:3]
    ends_in_chunk = RequestParams("tenant", "none", 0.0, 1, SEGMENTS[:3])
    (_, b) = chunk_reports(ends_in_chunk, found, plan([0, 1, 2, 3], 0, 23), 0, set())
    assert b.recomputed == 1
    (_, b) = chunk_reports(ends_in_chunk, found, None, 23, set())
    assert b.recomputed == 1


def test_lost_kv_is_refused_and_was_computed():
    _, b = report(findings(), [0, 1, 2, 3, 14, 15, 24, 25], missing={8})
    assert (b.outcome, b.recomputed) == (Outcome.REFUSED, 10)
    assert "gone" in b.reason


def test_a_refusal_of_the_whole_request_names_every_chunk():
    lines = refused_reports(params(), "no reason")
    assert [(line.chunk_id, line.outcome, line.recomputed) for line in lines] == [
        ("a", Outcome.REFUSED, 10),
        ("b", Outcome.REFUSED, 10),
    ]
    assert {line.reason for line in lines} == {"no reason"}
