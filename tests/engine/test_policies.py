"""Every policy on the real engine: the more it recomputes the nearer to full prefill, and all is full prefill."""

import math
from statistics import fmean

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.reuse import POLICIES
from cachecraft_rag.verification.cases import passage

SAMPLING = {"max_tokens": 1, "logprobs": 300}
QUESTIONS = ("Who keeps bees?", "Where does Greta live?", "Who owns a brass compass?", "What does Ines do?")
ORDERS = ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [4, 5, 3, 2, 0, 1])
STORED = [2, 4, 5, 0, 3, 1]  # the order that variants are computed in


def divergence(reference, answer):
    """KL of the first token's distributions, over the tokens that the reference lists."""
    ours = {token: value.logprob for token, value in answer.logprobs[0].items()}
    least = min(ours.values())
    return sum(
        math.exp(value.logprob) * (value.logprob - ours.get(token, least))
        for token, value in reference.logprobs[0].items()
    )


@pytest.fixture(scope="module")
def keeper(start_engine):
    with start_engine(keep_variants=1, max_num_batched_tokens=256, enable_prefix_caching=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def asked(keeper):
    """Prompts over stored chunks, and full prefill's answers."""
    chunks = [passage(8000 + number, 4) for number in range(6)]
    keeper.prewarm(chunks, progress=False)
    keeper.prewarm_variants([[chunks[n] for n in STORED]], progress=False)
    prompts = [ChunkPrompt.chat([chunks[n] for n in order], question) for order in ORDERS for question in QUESTIONS]
    return prompts, keeper.generate_batch(prompts, reuse=False, fresh=True, **SAMPLING)


@pytest.mark.parametrize("policy", sorted({*POLICIES} - {"none", "all"}))
def test_the_error_falls_as_the_ratio_rises(keeper, asked, policy):
    prompts, plain = asked
    errors, computed = {}, {}
    for ratio in (0.0, 0.5, 0.9, 1.0):
        answers = keeper.generate_batch(prompts, policy=policy, recompute_ratio=ratio, **SAMPLING)
        assert all(answer.report.hits == 6 for answer in answers)
        errors[ratio] = fmean(divergence(*pair) for pair in zip(plain, answers, strict=True))
        computed[ratio] = sum(answer.report.recomputed_tokens for answer in answers)
    assert computed[0.0] == 0 < computed[0.5] < computed[0.9] < computed[1.0]
    # A dozen prompts of a small model are noisy: a policy that ignores the prompt may gain nothing in its first half.
    assert errors[0.5] < 1.1 * errors[0.0], errors
    assert errors[0.9] < min(errors[0.5], 0.9 * errors[0.0]), errors
    assert errors[1.0] < 1e-5
    if POLICIES[policy].needs_question_pass or POLICIES[policy].needs_deviation_pass:
        assert errors[0.5] < 0.8 * errors[0.0], errors


def test_all_is_full_prefill_at_any_ratio(keeper, passages):
    chunks = passages(4)
    keeper.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks[::-1], QUESTIONS[0])
    plain = keeper.generate(prompt, reuse=False, fresh=True, **SAMPLING)
    for ratio in (0.0, 0.3):
        assert divergence(plain, keeper.generate(prompt, policy="all", recompute_ratio=ratio, **SAMPLING)) < 1e-5
