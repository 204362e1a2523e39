import pytest
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.vllm.sampling import make_sampling


def test_greedy_and_256_tokens_unless_asked_otherwise():
    made = make_sampling(None, {})
    assert (made.temperature, made.max_tokens) == (0.0, 256)
    made = make_sampling(None, {"temperature": 0.7, "max_tokens": 3, "stop": ["x"]})
    assert (made.temperature, made.max_tokens, made.stop) == (0.7, 3, ["x"])


def test_deltas_are_asked_for_and_the_callers_own_is_left_alone():
    given = SamplingParams(max_tokens=5, extra_args={"mine": 1})
    made = make_sampling(given, {})
    made.extra_args["theirs"] = 2
    assert made.output_kind is RequestOutputKind.DELTA
    assert given.output_kind is not RequestOutputKind.DELTA
    assert given.extra_args == {"mine": 1}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_token": 3}, "max_token"),
        ({"n": 2, "temperature": 1.0}, "n=2"),
        ({"n": 2}, "n"),
        ({"temperature": -1.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_args": {"kv_transfer_params": {}}}, "kv_transfer_params"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(options, named):
    with pytest.raises(InvalidInput, match=named):
        make_sampling(None, options)


def test_both_ways_at_once_are_refused():
    with pytest.raises(InvalidInput, match="max_tokens"):
        make_sampling(SamplingParams(), {"max_tokens": 3})


@pytest.mark.parametrize("given", [{"max_tokens": 3}, "greedy", 3])
def test_what_is_no_sampling_params_is_refused(given):
    with pytest.raises(InvalidInput, match="SamplingParams"):
        make_sampling(given, {})
