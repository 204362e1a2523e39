import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.reuse import POLICIES, PlanSegment, make_plan

RATIOS = st.sampled_from([0.0, 0.1, 0.15, 0.5, 0.9, 0.999]) | st.floats(0, 1)


@st.composite
def prompts(draw):
    """Segments that tile a prompt: text, hits (exact or not) and misses, some of them to be captured."""
    segments, position = [], 0
    for number in range(draw(st.integers(1, 6))):
        stop = position + draw(st.integers(1, 40))
        kind = draw(st.sampled_from(["text", "hit", "exact", "miss", "capture"]))
        key = hashlib.sha256(str(number).encode()).hexdigest()
        if kind == "text":
            segments.append(PlanSegment(position, stop))
        elif kind in ("hit", "exact"):
            at = position if kind == "exact" else draw(st.integers(0, 50))
            segments.append(PlanSegment(position, stop, key, handle=number + 1, cached_at=at, exact=kind == "exact"))
        else:
            segments.append(PlanSegment(position, stop, key, capture=100 + number if kind == "capture" else None))
        position = stop
    return segments


@st.composite
def ranges(draw, segments):
    tokens = segments[-1].stop
    lower = draw(st.integers(0, tokens))
    return lower, draw(st.integers(lower, tokens))


@st.composite
def cases(draw):
    segments = draw(prompts())
    return segments, *draw(ranges(segments))


def plan_of(segments, policy="first", ratio=0.2, lower=0, end=None, min_run=1, bucket=1):
    end = segments[-1].stop if end is None else end
    plan = make_plan(
        segments, POLICIES[policy], ratio, num_computed_tokens=lower, end=end, min_run=min_run, bucket=bucket
    )
    if plan.pending is None:
        return plan
    assert set(plan.pending.question_rows) <= set(plan.compute), "the question's rows are computed in the end"
    seen = np.random.default_rng(segments[-1].stop).random(segments[-1].stop)
    return plan.choose(seen, seen)


@given(case=cases(), policy=st.sampled_from(sorted(POLICIES)), ratio=RATIOS, min_run=st.integers(1, 8))
def test_every_position_of_the_range_is_computed_or_staged_once(case, policy, ratio, min_run):
    segments, lower, end = case
    plan = plan_of(segments, policy, ratio, lower, end, min_run)
    assert (plan.num_computed_tokens, plan.end) == (lower, end)
    assert plan.compute.dtype == np.int64
    assert (np.diff(plan.compute) > 0).all()
    staged = np.zeros(segments[-1].stop, dtype=int)
    for span in plan.staged:
        assert span.start < span.stop
        staged[span.start : span.stop] += 1
    computed = np.zeros_like(staged)
    computed[plan.compute] = 1
    assert staged.max(initial=0) <= 1
    assert (staged + computed)[lower:end].min(initial=1) >= 1
    assert (staged + computed)[:lower].sum() == 0
    assert (staged + computed)[end:].sum() == 0


@given(case=cases(), policy=st.sampled_from(sorted(POLICIES)), ratio=RATIOS)
def test_staged_spans_name_the_right_rows_and_rotation(case, policy, ratio):
    segments, lower, end = case
    by_handle = {segment.handle: segment for segment in segments if segment.handle is not None}
    for span in plan_of(segments, policy, ratio, lower, end).staged:
        segment = by_handle[span.handle]
        assert segment.start <= span.start < span.stop <= segment.stop
        assert span.source_start == span.start - segment.start
        # The row for position p was computed at cached_at + (p - segment.start).
        assert span.start - (segment.cached_at + span.source_start) == span.delta


@given(case=cases(), policy=st.sampled_from(sorted(POLICIES)), ratio=RATIOS)
def test_only_what_is_computed_whole_is_captured(case, policy, ratio):
    segments, lower, end = case
    plan = plan_of(segments, policy, ratio, lower, end)
    computed = set(plan.compute.tolist())
    captured = {span.handle for span in plan.captures}
    for span in plan.captures:
        assert set(range(span.start, span.stop)) <= computed
    for segment in segments:
        if segment.capture is not None:
            whole = segment.start >= lower and segment.stop <= end
            assert (segment.capture in captured) == whole


@given(case=cases(), policy=st.sampled_from(sorted(POLICIES)), ratio=RATIOS, min_run=st.integers(1, 8))
def test_a_cut_never_changes_which_other_tokens_are_chosen(case, policy, ratio, min_run):
    segments, lower, end = case
    whole = plan_of(segments, policy, ratio, min_run=min_run).compute
    cut = plan_of(segments, policy, ratio, lower, end, min_run).compute
    assert cut.tolist() == whole[(whole >= lower) & (whole < end)].tolist()


@given(segments=prompts(), policy=st.sampled_from(["first", "random"]), ratios=st.tuples(RATIOS, RATIOS))
def test_a_larger_ratio_computes_at_least_the_same(segments, policy, ratios):
    less, more = (set(plan_of(segments, policy, ratio).compute.tolist()) for ratio in sorted(ratios))
    assert less <= more


@pytest.mark.parametrize(("policy", "ratio"), [("all", 0.0), ("all", 1.0), ("first", 1.0), ("random", 1.0)])
@given(case=cases())
def test_nothing_stored_is_used_where_all_is_recomputed(policy, ratio, case):
    segments, lower, end = case
    plan = plan_of(segments, policy, ratio, lower, end)
    assert plan.staged == ()
    assert plan.compute.tolist() == list(range(lower, end))


@given(segments=prompts(), ratio=RATIOS)
def test_naive_reuse_computes_no_token_of_a_hit(segments, ratio):
    computed = plan_of(segments, "none", ratio).compute
    for segment in segments:
        within = ((computed >= segment.start) & (computed < segment.stop)).sum()
        assert within == (0 if segment.handle is not None else segment.stop - segment.start)


@given(segments=prompts(), policy=st.sampled_from(["first", "random", "none"]), ratio=st.floats(0, 0.999))
def test_an_exact_hit_is_reused_whole(segments, policy, ratio):
    plan = plan_of(segments, policy, ratio)
    for segment in segments:
        if segment.exact:
            assert not ((plan.compute >= segment.start) & (plan.compute < segment.stop)).any()


@given(segments=prompts(), ratio=st.floats(0.001, 0.5), min_run=st.integers(1, 8))
def test_computed_tokens_of_a_hit_come_in_groups(segments, ratio, min_run):
    computed = set(plan_of(segments, "random", ratio, min_run=min_run).compute.tolist())
    for segment in segments:
        for start in range(segment.start, segment.stop, min_run):
            group = set(range(start, min(start + min_run, segment.stop)))
            assert group <= computed or not group & computed


def test_a_span_that_is_recomputed_whole_is_not_staged():
    segments = [PlanSegment(0, 10), PlanSegment(10, 12, "a" * 64, handle=1, cached_at=3)]
    assert plan_of(segments, "first", 0.9).staged == ()


def test_an_empty_prompt_has_an_empty_plan():
    plan = make_plan([], POLICIES["first"], 0.5, num_computed_tokens=0, end=0)
    assert (plan.compute.size, plan.staged, plan.captures) == (0, (), ())


def test_segments_and_plans_cannot_be_changed():
    plan = plan_of([PlanSegment(0, 4)])
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.end = 3


def question_plan(*segments, ratio=0.2, lower=0, end=None):
    end = segments[-1].stop if end is None else end
    return make_plan(segments, POLICIES["question"], ratio, num_computed_tokens=lower, end=end)


HIT = PlanSegment(4, 24, "00" * 16, handle=1, cached_at=0)
MISS = PlanSegment(24, 34, "11" * 16)
TEXT = PlanSegment(34, 40)


def test_the_question_is_what_stands_behind_the_last_chunk():
    plan = question_plan(PlanSegment(0, 4), HIT, MISS, TEXT, end=39)
    assert plan.pending.question_rows.tolist() == [34, 35, 36, 37, 38]
    assert [(span.handle, span.start, span.stop, span.delta) for span in plan.pending.keys] == [(1, 4, 24, 4)]
    assert [chunk.start for chunk in plan.pending.chunks] == [4]
    assert plan.compute.tolist() == [0, 1, 2, 3, *range(24, 39)]


def test_without_text_behind_the_chunks_it_is_first():
    plan = question_plan(PlanSegment(0, 4), HIT)
    assert plan.pending is None
    assert plan.compute.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_deviation_looks_at_all_up_to_the_last_chunk_that_is_not_exact():
    exact = PlanSegment(0, 4, "22" * 16, handle=7, exact=True)
    plan = make_plan([exact, HIT, MISS, TEXT], POLICIES["deviation"], 0.2, num_computed_tokens=0, end=40)
    assert plan.pending.deviation_rows.tolist() == list(range(4, 24))
    assert plan.pending.question_rows.size == 0
    deviation = np.zeros(40)
    deviation[[9, 11, 15, 20, 39]] = 1
    assert plan.choose(deviation=deviation).compute.tolist() == [9, 11, 15, 20, *range(24, 40)]
    later = make_plan([exact, HIT, MISS, TEXT], POLICIES["deviation"], 0.2, num_computed_tokens=14, end=40)
    assert later.pending.deviation_rows.tolist() == list(range(14, 24))


def test_what_a_choice_will_compute_counts_by_the_overhead_until_it_is_made():
    changed = PlanSegment(4, 24, "00" * 16, handle=1, statistics={"overhead": 0.1, "attention": None})
    exact = PlanSegment(24, 34, "11" * 16, handle=2, exact=True)
    plan = question_plan(PlanSegment(0, 4), changed, exact, TEXT, ratio=0.2)
    assert plan.computed_share(0, 4) == plan.computed_share(34, 40) == 1.0
    assert plan.computed_share(24, 34) == 0.0
    assert plan.computed_share(4, 24) == pytest.approx(0.04)  # twice the ratio times the overhead at alpha = 1
    attention = np.zeros(40)
    attention[[10, 20]] = 1
    assert plan.choose(attention).computed_share(4, 24) == 4 / 20
    first = plan_of([PlanSegment(0, 4), HIT, TEXT], ratio=0.2)
    assert first.computed_share(4, 24) == 4 / 20


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_at_the_ends_nothing_is_left_to_choose(ratio):
    assert question_plan(HIT, MISS, TEXT, ratio=ratio).pending is None


def test_the_choice_ignores_what_vllm_has_in_its_prefix_cache():
    attention = np.zeros(40)
    attention[[10, 20]] = 1
    whole, part = (question_plan(PlanSegment(0, 4), HIT, TEXT, ratio=0.3, lower=n).choose(attention) for n in (0, 16))
    assert part.pending is None
    assert part.compute.tolist() == [position for position in whole.compute if position >= 16]
    assert 20 in part.compute


@given(case=cases(), policy=st.sampled_from(sorted(POLICIES)), ratio=RATIOS, bucket=st.integers(1, 40))
def test_computed_tokens_are_rounded_up_to_buckets(case, policy, ratio, bucket):
    segments, lower, end = case
    plain = plan_of(segments, policy, ratio, lower, end)
    rounded = plan_of(segments, policy, ratio, lower, end, bucket=bucket)
    wanted = min(-(-plain.compute.size // bucket) * bucket, end - lower)
    assert rounded.compute.size == wanted
    assert set(plain.compute) <= set(rounded.compute)
    assert np.all(np.diff(rounded.compute) > 0)
    assert set(rounded.staged) <= set(plain.staged)
    assert rounded.captures == plain.captures
