import pytest

from cachecraft_rag.bench.quality.data import Passage, Question
from cachecraft_rag.bench.quality.variants import EXACT_PREFIX, FULL, NO_CONTEXT, Variant
from cachecraft_rag.bench.quality.ways import Ways

PASSAGES = [Passage("", f"passage {number}") for number in range(4)]
QUESTIONS = [
    Question("Who?", ("a",), tuple(PASSAGES[:3])),
    Question("Where?", ("b",), (PASSAGES[1], PASSAGES[0], PASSAGES[3])),
]


@pytest.fixture
def ways():
    return Ways(QUESTIONS, min_run=2)


def test_full_prefill_finds_nothing_in_the_cache(ways):
    for variant in (FULL, NO_CONTEXT):
        assert ways.way(0, variant).options == {"reuse": False, "fresh": True}
    assert ways.is_full_prefill(0, EXACT_PREFIX)  # no prompt came before
    assert not ways.is_full_prefill(1, EXACT_PREFIX)


def test_exact_prefix_comes_behind_the_prompt_it_shares_a_beginning_with(ways):
    way = ways.way(1, EXACT_PREFIX)
    assert [chunk.text for chunk in way.prompt.chunks] == ["passage 0", "passage 1", "passage 3"]
    assert way.before == ways.way(0, FULL).prompt
    assert way.options == {"reuse": False}
    assert way.apart("x").options == {"reuse": False, "cache_salt": "x"}


def test_a_policy_gets_its_options(ways):
    way = ways.way(1, Variant("random", 0.3))
    assert way.options == {"policy": "random", "recompute_ratio": 0.3, "min_run": 2}
    assert way.apart("x") == way  # its salt is made from its options


def test_the_key_of_reordering_depends_on_earlier_questions(ways):
    other = Ways([QUESTIONS[1]], min_run=2)
    assert other.key(0, FULL) == ways.key(1, FULL)
    assert other.key(0, EXACT_PREFIX) != ways.key(1, EXACT_PREFIX)
