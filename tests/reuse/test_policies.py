import hashlib
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse.policies import POLICIES, get_policy, recomputes_all
from cachecraft_rag.reuse.select import select
from cachecraft_rag.reuse.selection import RepairableChunk, SelectionContext

SCORED = ["first", "random"]


def chunk_key(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


@st.composite
def contexts(draw):
    chunks, position = [], draw(st.integers(0, 10))
    for number in range(draw(st.integers(0, 4))):
        tokens = draw(st.integers(1, 60))
        chunks.append(RepairableChunk(chunk_key(number), position, position + tokens))
        position += tokens + draw(st.integers(0, 5))
    return SelectionContext(position + 1, chunks)


class Shared:
    """A policy whose scores are comparable across chunks: later tokens of the prompt first."""

    name = "shared"
    needs_question_pass = False
    needs_deviation_pass = False
    uses_variants = False
    shares_budget = True

    def budget(self, tokens, ratio):
        return math.ceil(ratio * tokens)

    def scores(self, context):
        return [np.arange(chunk.start, chunk.stop, dtype=np.float64) for chunk in context.chunks]


def inside(positions, chunk):
    return positions[(positions >= chunk.start) & (positions < chunk.stop)]


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(context=contexts(), ratio=st.floats(0, 1), min_run=st.integers(1, 9))
def test_every_choice_is_sorted_unique_and_inside_the_chunks(name, context, ratio, min_run):
    positions = select(POLICIES[name], context, ratio, min_run)
    assert positions.dtype.kind == "i"
    assert (np.diff(positions) > 0).all()
    assert sum(inside(positions, chunk).size for chunk in context.chunks) == positions.size


@pytest.mark.parametrize("name", SCORED)
@given(context=contexts(), ratio=st.floats(0, 1))
def test_each_chunk_gets_its_share_rounded_up(name, context, ratio):
    positions = select(POLICIES[name], context, ratio)
    for chunk in context.chunks:
        exact = ratio * chunk.tokens
        assert exact - 1e-6 <= inside(positions, chunk).size <= min(chunk.tokens, math.floor(exact + 1e-9) + 1)


@pytest.mark.parametrize(("ratio", "tokens", "expected"), [(0.1, 30, 3), (0.15, 20, 3), (0.3, 10, 3), (0.7, 10, 7)])
def test_the_share_is_not_rounded_up_for_an_error_in_the_last_digit(ratio, tokens, expected):
    assert POLICIES["first"].budget(tokens, ratio) == expected


@pytest.mark.parametrize("name", SCORED)
@given(context=contexts(), ratios=st.tuples(st.floats(0, 1), st.floats(0, 1)), min_run=st.integers(1, 9))
def test_a_larger_ratio_keeps_all_that_a_smaller_one_chose(name, context, ratios, min_run):
    less, more = (set(select(POLICIES[name], context, ratio, min_run).tolist()) for ratio in sorted(ratios))
    assert less <= more


@pytest.mark.parametrize("name", sorted(POLICIES))
@given(context=contexts())
def test_the_two_ends(name, context):
    everything = np.concatenate([np.arange(c.start, c.stop) for c in context.chunks] or [np.empty(0)])
    at_one = select(POLICIES[name], context, 1.0)
    assert at_one.tolist() == ([] if name == "none" else everything.tolist())
    at_zero = select(POLICIES[name], context, 0.0)
    assert at_zero.tolist() == (everything.tolist() if name == "all" else [])


@pytest.mark.parametrize("name", SCORED)
@given(context=contexts(), ratio=st.floats(0, 1), min_run=st.integers(2, 9))
def test_runs_are_whole_groups_counted_from_the_start_of_their_chunk(name, context, ratio, min_run):
    positions = select(POLICIES[name], context, ratio, min_run)
    for chunk in context.chunks:
        chosen = set((inside(positions, chunk) - chunk.start).tolist())
        for group in range(0, chunk.tokens, min_run):
            members = set(range(group, min(group + min_run, chunk.tokens)))
            assert members <= chosen or not members & chosen
        budget = POLICIES[name].budget(chunk.tokens, ratio)
        assert budget <= len(chosen) < budget + min_run


def test_first_takes_the_first_tokens():
    context = SelectionContext(100, [RepairableChunk(chunk_key(0), 10, 30), RepairableChunk(chunk_key(1), 50, 60)])
    assert select(POLICIES["first"], context, 0.2).tolist() == [10, 11, 12, 13, 50, 51]


def test_random_depends_on_the_key_and_not_on_the_place():
    def chosen(key, start):
        context = SelectionContext(500, [RepairableChunk(key, start, start + 60)])
        return (select(POLICIES["random"], context, 0.3) - start).tolist()

    assert chosen(chunk_key(1), 0) == chosen(chunk_key(1), 333)
    assert chosen(chunk_key(1), 0) != chosen(chunk_key(2), 0)


def test_random_is_the_same_in_every_process():
    program = (
        "from cachecraft_rag.reuse.select import *; from cachecraft_rag.reuse.policies import POLICIES; "
        f"print(select(POLICIES['random'], SelectionContext(60, [RepairableChunk({chunk_key(1)!r}, 0, 60)]), 0.3))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_a_shared_budget_goes_to_the_best_tokens_of_all_chunks():
    context = SelectionContext(100, [RepairableChunk(chunk_key(0), 0, 10), RepairableChunk(chunk_key(1), 50, 60)])
    assert select(Shared(), context, 0.25).tolist() == [55, 56, 57, 58, 59]
    assert select(Shared(), context, 0.6).tolist() == [8, 9, *range(50, 60)]


@given(context=contexts(), ratios=st.tuples(st.floats(0, 1), st.floats(0, 1)), min_run=st.integers(1, 9))
def test_a_shared_budget_is_kept_and_monotone(context, ratios, min_run):
    less, more = (set(select(Shared(), context, ratio, min_run).tolist()) for ratio in sorted(ratios))
    assert less <= more
    total = sum(chunk.tokens for chunk in context.chunks)
    if context.chunks:
        budget = Shared().budget(total, min(ratios))
        assert budget <= len(less) < budget + min_run


@pytest.mark.parametrize(
    ("policy", "ratio", "expected"),
    [("all", 0.0, True), ("none", 1.0, False), ("first", 1.0, True), ("random", 0.999, False), ("first", 0.0, False)],
)
def test_what_recomputes_all(policy, ratio, expected):
    assert recomputes_all(policy, ratio) is expected


def test_an_unknown_policy_is_named_with_the_known_ones():
    with pytest.raises(InvalidInput, match=r"'best'.*all, blend, .*, first, none, question, random"):
        get_policy("best")


def test_the_table_of_policies_agrees_with_their_names():
    assert all(get_policy(name).name == name for name in POLICIES)


def test_question_takes_first_tokens_and_then_what_is_attended_to():
    chunks = [RepairableChunk("00" * 16, 10, 30), RepairableChunk("11" * 16, 30, 50)]
    attention = np.zeros(60)
    attention[[25, 45, 46]] = [0.2, 0.9, 0.1]
    context = SelectionContext(60, chunks, attention)
    chosen = select(get_policy("question"), context, 10 / 40)
    assert chosen.tolist() == [10, 11, 12, 13, 25, 30, 31, 32, 33, 45]


def test_question_without_attention_is_first():
    context = SelectionContext(60, [RepairableChunk("00" * 16, 10, 30)])
    assert select(get_policy("question"), context, 0.2).tolist() == [10, 11, 12, 13]


@given(st.lists(st.floats(0, 5), min_size=40, max_size=40), st.floats(0.01, 1))
def test_question_keeps_its_budget(weights, ratio):
    chunks = [RepairableChunk("00" * 16, 0, 15), RepairableChunk("11" * 16, 20, 40)]
    chosen = select(get_policy("question"), SelectionContext(40, chunks, np.array(weights)), ratio)
    assert len(chosen) == get_policy("question").budget(35, ratio)
    assert len(set(chosen.tolist())) == len(chosen)


def cachecraft(overhead, attention, tokens=20):
    chunk = RepairableChunk(chunk_key(0), 5, 5 + tokens, {"overhead": overhead, "attention": attention})
    return lambda ratio: select(POLICIES["cachecraft"], SelectionContext(40, [chunk]), ratio).tolist()


def test_cachecraft_recomputes_the_share_that_its_overhead_says_where_attention_is_largest():
    attention = np.zeros(20)
    attention[[3, 9, 14]] = (1, 3, 2)
    chosen = cachecraft(0.25, attention)
    assert chosen(0.2) == [14, 19], "2 * 0.2 * 0.25 of 20 tokens"
    assert chosen(0.3) == [8, 14, 19]
    assert len(cachecraft(0.9, attention)(0.5)) == 18
    assert len(cachecraft(0.9, attention)(0.6)) == 20, "never more than all"


def test_cachecraft_takes_the_first_tokens_of_canonical_kv():
    assert cachecraft(0.5, None)(0.15) == [5, 6, 7]
    chunk = RepairableChunk(chunk_key(0), 5, 25)
    assert select(POLICIES["cachecraft"], SelectionContext(40, [chunk]), 0.15).tolist() == [5, 6, 7]


def blended(context, ratio, policy="blend"):
    return select(POLICIES[policy], context, ratio).tolist()


def test_blend_takes_the_first_tokens_and_then_one_of_each_kind():
    attention = np.zeros(100)
    attention[[35, 80, 52]] = (3, 2, 1)
    chunks = [RepairableChunk(chunk_key(0), 0, 40), RepairableChunk(chunk_key(1), 50, 90)]
    context = SelectionContext(100, chunks, attention)
    firsts = [*range(8), *range(50, 58)]
    assert blended(context, 16 / 80) == firsts
    assert blended(context, 17 / 80) == sorted([*firsts, 8])
    assert blended(context, 18 / 80) == sorted([*firsts, 8, 35])
    assert blended(context, 20 / 80) == sorted([*firsts, 8, 58, 35, 80])


def test_blend_without_a_question_keeps_the_fixed_order():
    chunks = [RepairableChunk(chunk_key(0), 0, 40), RepairableChunk(chunk_key(1), 50, 70)]
    assert blended(SelectionContext(100, chunks), 0.5) == [*range(15), *range(50, 65)]


def test_blend_repairs_a_variant_by_how_much_its_context_has_changed():
    stored = np.arange(40.0)  # the later tokens looked most at what was before them
    statistics = [{"overhead": overhead, "attention": stored} for overhead in (0.6, 0.05)]
    chunks = [RepairableChunk(chunk_key(n), 50 * n, 50 * n + 40, given) for n, given in enumerate(statistics)]
    chosen = np.array(blended(SelectionContext(100, chunks), 0.3, "blend-variants"))
    changed, same = chosen[chosen < 40], chosen[chosen >= 50]
    assert changed.size > 8 * same.size > 0
    assert changed.tolist() == list(range(40 - changed.size, 40))


@given(context=contexts(), ratios=st.tuples(st.floats(0, 1), st.floats(0, 1)), seed=st.integers(0, 99))
def test_blend_keeps_at_a_larger_ratio_all_that_a_smaller_one_chose(context, ratios, seed):
    asked = SelectionContext(context.prompt_tokens, context.chunks, np.random.default_rng(seed).random(400))
    less, more = (set(blended(asked, ratio)) for ratio in sorted(ratios))
    assert less <= more
