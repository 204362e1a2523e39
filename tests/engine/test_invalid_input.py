"""What cannot be sent is refused at once with its name, and the engine goes on."""

import pytest
from vllm import SamplingParams

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.errors import InvalidInput


@pytest.fixture
def prompt(passages):
    return ChunkPrompt.chat(passages(1), "Who?")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_token": 4}, "max_token"),
        ({"temprature": 0.1}, "temprature"),
        ({"n": 2, "temperature": 1.0}, "n=2"),
        ({"n": 2}, "n"),
        ({"temperature": -1.0}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 100_000}, "logprobs"),
        ({"policy": "best"}, "best"),
        ({"recompute_ratio": 1.5}, "recompute_ratio"),
        ({"recompute_ratio": float("nan")}, "recompute_ratio"),
        ({"recompute_ratio": "much"}, "recompute_ratio"),
        ({"min_run": 0}, "min_run"),
        ({"min_run": -1}, "min_run"),
        ({"namespace": ""}, "namespace"),
        ({"namespace": 3}, "namespace"),
        ({"fresh": True}, "reuse=False"),
        ({"cache_salt": "mine"}, "reuse=False"),
        ({"reuse": False, "cache_salt": ""}, "cache_salt=''"),
        ({"reuse": False, "cache_salt": "mine", "fresh": True}, "cache_salt='mine'"),
        ({"max_tokens": 2048}, "2048"),
        ({"extra_args": {"kv_transfer_params": {}}}, "kv_transfer_params"),
    ],
    ids=repr,
)
def test_bad_options_are_named(engine, prompt, options, named):
    with pytest.raises(InvalidInput, match=named):
        engine.generate(prompt, **{"max_tokens": 2, **options})
    with pytest.raises(InvalidInput, match=named):
        list(engine.stream(prompt, **{"max_tokens": 2, **options}))


def test_a_namespace_is_checked_by_every_method(engine, passages):
    for call in (
        lambda: engine.prewarm(passages(1), namespace="", progress=False),
        lambda: engine.delete(everything=True, namespace=""),
        lambda: engine.pin([], namespace=""),
    ):
        with pytest.raises(InvalidInput, match="namespace"):
            call()


def test_a_prompt_longer_than_the_context_names_both_numbers(engine, passages):
    long = ChunkPrompt.chat(passages(6, 16), "Who?")
    tokens = len(engine.tokenizer.encode(long).token_ids)
    assert tokens > 2048
    with pytest.raises(InvalidInput, match=rf"{tokens} tokens.*2048"):
        engine.generate(long, max_tokens=1)


def test_the_longest_prompt_that_fits_is_answered(engine, passages, prompt_of_length):
    (last,) = passages(1)
    prompt = prompt_of_length(engine, 2047, [], last)
    assert engine.generate(prompt, max_tokens=1, recompute_ratio=1.0).finish_reason == "length"
    with pytest.raises(InvalidInput, match=r"2047.*max_tokens=2"):
        engine.generate(prompt, max_tokens=2)


@pytest.mark.parametrize("what", ["text", None, 3, ["a chunk"]])
def test_what_is_no_prompt(engine, what):
    with pytest.raises(InvalidInput, match="ChunkPrompt"):
        engine.generate(what)


def test_sampling_params_of_vllm_are_taken_and_left_alone(engine, prompt):
    sampling = SamplingParams(temperature=0.0, max_tokens=3)
    answer = engine.generate(prompt, sampling)
    assert len(answer.token_ids) == 3
    assert sampling.extra_args is None
    assert engine.generate(prompt, max_tokens=3).token_ids == answer.token_ids
    with pytest.raises(InvalidInput, match="max_tokens"):
        engine.generate(prompt, sampling, max_tokens=3)


def test_a_prompt_without_chunks_is_a_plain_request(engine):
    answer = engine.generate(ChunkPrompt.from_parts(["Bees are"]), max_tokens=3)
    assert answer.report is None
    assert len(answer.token_ids) == 3


async def test_the_same_errors_for_tasks(engine, prompt):
    with pytest.raises(InvalidInput, match="max_token"):
        await engine.agenerate(prompt, max_token=4)
    with pytest.raises(InvalidInput, match="max_token"):
        async for _ in engine.astream(prompt, max_token=4):
            pass
