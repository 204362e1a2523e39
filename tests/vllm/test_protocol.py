import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.reuse import get_policy
from cachecraft_rag.store.changes import DiskReport
from cachecraft_rag.vllm.protocol import PlanResult, RequestParams, WorkerMetadata, prompt_digest

SEGMENTS = ((0, 4, None, None, None), (4, 9, "id", "digest", "a.md"), (9, 12, None, None, None))


def wire(**changes):
    return {**RequestParams("tenant", "first", 0.15, 2, SEGMENTS).to_wire(), **changes}


@st.composite
def params(draw):
    segments, position = [], 0
    for _ in range(draw(st.integers(1, 5))):
        stop = position + draw(st.integers(1, 50))
        chunk_id = draw(st.none() | st.text(max_size=10))
        segments.append((position, stop, chunk_id, draw(st.none() | st.text(max_size=5)), draw(st.none() | st.text())))
        position = stop
    return RequestParams(draw(st.text()), "first", draw(st.floats(0, 1)), draw(st.integers(1, 9)), tuple(segments))


@given(params())
def test_the_wire_holds_plain_json_and_comes_back_equal(given_params):
    over_the_wire = json.loads(json.dumps(given_params.to_wire()))
    assert RequestParams.from_wire(over_the_wire, given_params.segments[-1][1]) == given_params


def test_a_control_request_needs_no_segments():
    asked = RequestParams("tenant", "none", 0.0, 1, (), control={"op": "stats"})
    assert RequestParams.from_wire(asked.to_wire(), 1) == asked


@pytest.mark.parametrize("name", ["namespace", "policy", "ratio", "segments"])
def test_a_missing_field_is_named(name):
    fields = wire()
    del fields[name]
    with pytest.raises(ValueError, match=name):
        RequestParams.from_wire(fields, 12)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([[0, 4, None, None, None], [5, 12, None, None, None]], "expected from 4"),
        ([[0, 4, None, None, None], [3, 12, None, None, None]], "expected from 4"),
        ([[0, 4, None, None, None], [4, 4, "id", None, None], [4, 12, None, None, None]], "do not tile"),
        ([[4, 0, None, None, None]], "do not tile"),
        ([[0, 11, None, None, None]], "cover 11 tokens but the prompt has 12"),
        ([[0, 13, None, None, None]], "cover 13 tokens but the prompt has 12"),
        ([], "cover 0 tokens"),
        ([[-3, 12, None, None, None]], "do not tile"),
    ],
)
def test_segments_that_do_not_tile_the_prompt_are_refused(segments, message):
    with pytest.raises(ValueError, match=message):
        RequestParams.from_wire(wire(segments=segments), 12)


GARBAGE = {
    "nothing": None,
    "number": 3,
    "text": "text",
    "list": [],
    "ratio below": wire(ratio=-0.1),
    "ratio above": wire(ratio=1.1),
    "ratio nan": wire(ratio=float("nan")),
    "ratio text": wire(ratio="much"),
    "ratio none": wire(ratio=None),
    "run zero": wire(min_run=0),
    "run below": wire(min_run=-4),
    "run text": wire(min_run="x"),
    "run infinite": wire(min_run=float("inf")),
    "no segments": wire(segments=None),
    "segments number": wire(segments=3),
    "segments text": wire(segments=["abcde"]),
    "short segment": wire(segments=[[0, 12]]),
    "segment without end": wire(segments=[[0, None, None, None, None]]),
    "infinite segment": wire(segments=[[0, float("inf"), None, None, None]]),
    "chunk id number": wire(segments=[[0, 12, 5, None, None]]),
    "chunk id list": wire(segments=[[0, 12, ["id"], None, None]]),
    "digest number": wire(segments=[[0, 12, "id", 7, None]]),
    "document list": wire(segments=[[0, 12, "id", None, ["a.md"]]]),
    "document number": wire(segments=[[0, 12, "id", None, 3]]),
    "control text": wire(control="stats"),
    "control list": wire(control=["stats"]),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_a_value_error_and_nothing_else(garbage):
    with pytest.raises(ValueError):  # noqa: PT011
        RequestParams.from_wire(garbage, 12)


def result(**changes):
    fields = {"staging_seconds": 1.0, "compute_seconds": 2.0, "slices": 1, "computed_tokens": 10, **changes}
    return PlanResult(**fields)


def test_ranks_are_summed_up_as_the_slowest_and_the_least_complete():
    ours = WorkerMetadata({("a", 1): result(missing={3: "gone"})}, stored=[5, 6], store_bytes=100)
    theirs = WorkerMetadata(
        {("a", 1): result(staging_seconds=3.0, missing={2: "gone", 3: "why"}, cancelled=True)},
        stored=[6, 7],
        store_bytes=100,
    )
    both = ours.aggregate(theirs)
    assert both.results == {("a", 1): result(staging_seconds=3.0, missing={2: "gone", 3: "gone"}, cancelled=True)}
    assert both.stored == [6]
    assert both.store_bytes == 100
    assert ours.stored == [5, 6]


@pytest.mark.parametrize(("policy", "ratio", "depends"), [
    ("blend", 0.15, True), ("question", 0.5, True), ("deviation", 0.15, True), ("blend", 0.0, False),
    ("blend", 1.0, False), ("first", 0.15, False), ("cachecraft", 0.15, False), ("none", 0.0, False),
    ("all", 0.2, False),
])  # fmt: skip
def test_only_a_choice_that_looks_at_all_of_the_prompt_is_bound_to_it(policy, ratio, depends):
    digests = {prompt_digest(get_policy(policy), ratio, ids) for ids in ([1, 2, 3], [1, 2, 4])}
    assert len(digests) == (2 if depends else 1)
    assert (None in digests) != depends


def test_news_from_the_disk_are_kept_by_rank():
    first, second, third = (WorkerMetadata(rank=rank, disk=DiskReport(changed=rank + 1)) for rank in range(3))
    together = first.aggregate(second).aggregate(third)
    assert {rank: report.changed for rank, report in together.disks.items()} == {0: 1, 1: 2, 2: 3}
    assert {rank: report.changed for rank, report in second.aggregate(third).disks.items()} == {1: 2, 2: 3}
