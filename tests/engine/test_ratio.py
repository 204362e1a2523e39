"""From naive reuse to full prefill: what the ratio buys, with vLLM's prefix cache and without."""

import math
from itertools import pairwise
from statistics import fmean

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.verification.compare import compare

RATIOS = (0.0, 0.1, 0.3, 0.5, 0.9, 1.0)
SAMPLING = {"max_tokens": 1, "logprobs": 300}
QUESTIONS = ("Who keeps bees?", "Where does Greta live?", "What was bought in 1950?", "Who owns a glass boat?")


def divergence(reference, answer):
    """Kullback-Leibler divergence of the first token's distributions, over the tokens that the reference lists."""
    ours = {token: value.logprob for token, value in answer.logprobs[0].items()}
    least = min(ours.values())
    return sum(
        math.exp(value.logprob) * (value.logprob - ours.get(token, least))
        for token, value in reference.logprobs[0].items()
    )


@pytest.fixture(scope="module")
def prompts():
    from cachecraft_rag.verification.cases import passage

    chunks = [passage(7000 + number, 5) for number in range(5)]
    orders = ([0, 1, 2], [2, 1, 0], [3, 0, 4], [4, 2, 1, 0])
    return chunks, [
        ChunkPrompt.chat([chunks[n] for n in order], question)
        for order, question in zip(orders, QUESTIONS, strict=True)
    ]


@pytest.fixture(scope="module")
def swept(engine, sliced_engine, prompts):
    """Answers by engine and ratio, and plain vLLM's."""
    chunks, asked = prompts
    answers = {}
    for name, one in (("prefix cache", engine), ("no prefix cache", sliced_engine)):
        one.prewarm(chunks, progress=False)
        answers[name, "plain"] = one.generate_batch(asked, reuse=False, fresh=True, **SAMPLING)
        for ratio in RATIOS:
            if name == "prefix cache":  # from here on it holds the beginnings
                one.generate_batch(asked, recompute_ratio=ratio, max_tokens=1)
            answers[name, ratio] = [one.generate(prompt, recompute_ratio=ratio, **SAMPLING) for prompt in asked]
    return answers


@pytest.mark.parametrize("name", ["prefix cache", "no prefix cache"])
def test_the_error_falls_as_the_ratio_rises(swept, name):
    plain = swept[name, "plain"]
    errors = {
        ratio: fmean(divergence(*pair) for pair in zip(plain, swept[name, ratio], strict=True)) for ratio in RATIOS
    }
    assert errors[1.0] < 1e-5
    assert errors[0.9] < errors[0.5] < errors[0.0]
    assert errors[0.9] < 0.6 * errors[0.0]
    # A few prompts of a small model are noisy: a step may lose a little, but never much.
    for less, more in pairwise(RATIOS):
        assert errors[more] < 1.25 * errors[less] + 1e-5, f"{more} is worse than {less}: {errors}"


def test_more_is_computed_as_the_ratio_rises(swept):
    for index in range(len(QUESTIONS)):
        counts = [swept["no prefix cache", ratio][index].report.recomputed_tokens for ratio in RATIOS]
        assert counts == sorted(counts)
        assert counts[0] == 0
        assert counts[1] > 0


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_prefix_cache_changes_no_answer(swept, ratio):
    pairs = zip(swept["prefix cache", ratio], swept["no prefix cache", ratio], strict=True)
    found = 0
    for cached, uncached in pairs:
        found += cached.report.prefix_cache_tokens
        assert uncached.report.prefix_cache_tokens == 0
        assert cached.report.hits == uncached.report.hits == len(cached.report.chunks)
        difference = compare(uncached, cached)
        assert difference.parts_at is None
        assert difference.logprob < 1e-2  # over 300 tokens, the least likely of them included
    assert found > 0


def test_everything_recomputed_is_said_to_be_exact(swept):
    for answer in swept["prefix cache", 1.0]:
        assert all(chunk.exact for chunk in answer.report.chunks)
    for answer in swept["no prefix cache", 0.3]:
        assert [chunk.exact for chunk in answer.report.chunks][1:] == [False] * (len(answer.report.chunks) - 1)


@pytest.mark.parametrize("policy", ["random", "first"])
def test_policies_at_the_same_ratio_compute_the_same_number(engine, prompts, policy):
    chunks, asked = prompts
    engine.prewarm(chunks, progress=False)
    report = engine.generate(asked[3], policy=policy, recompute_ratio=0.2, **SAMPLING).report
    assert [line.recomputed for line in report.chunks] == [math.ceil(line.tokens / 5) for line in report.chunks]
