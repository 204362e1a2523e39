import pytest

from cachecraft_rag.bench.quality.variants import RIVALS, Variant, make_variants
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse import POLICIES


def test_the_rivals_are_always_there():
    assert make_variants([], []) == list(RIVALS)
    assert [str(variant) for variant in RIVALS] == ["no context", "exact prefix", "none 0"]


def test_what_is_the_same_is_measured_once():
    variants = make_variants(["none", "first", "all", "first"], [0.0, 0.15, 1.0])
    assert variants == [*RIVALS, Variant("first", 0.15), Variant("all", 1.0)]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_can_be_measured(policy):
    assert make_variants([policy], [0.5])[-1].name == policy


@pytest.mark.parametrize(("policies", "ratios", "message"), [(["best"], [0.1], "unknown"), (["first"], [2], "ratio 2")])
def test_what_cannot_be_measured_is_refused(policies, ratios, message):
    with pytest.raises(InvalidInput, match=message):
        make_variants(policies, ratios)


def test_other_ratios_have_other_names():
    variants = make_variants(["first"], [0.3333333, 0.33333331, 1 / 3])[len(RIVALS) :]
    assert len({str(variant) for variant in variants}) == 3
    assert [str(Variant("first", ratio)) for ratio in (0.05, 0.15, 0.3, 1.0, 0.333333, 1e-5)] == [
        *("first 0.05", "first 0.15", "first 0.3", "first 1", "first 0.333333", "first 1e-05"),
    ]
