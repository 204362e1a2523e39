"""The policy that looks at the question: closer to full prefill at the same budget, whatever the prompt looks like."""

import math

import pytest

from cachecraft_rag import ChunkPrompt

SAMPLING = {"max_tokens": 1, "logprobs": 300}
QUESTIONS = ("Who keeps bees?", "Where does Greta live?", "Who owns a brass compass?", "What does Ines do?")


def divergence(reference, answer):
    """KL of the first token's distributions, over the tokens that the reference lists."""
    ours = {token: value.logprob for token, value in answer.logprobs[0].items()}
    least = min(ours.values())
    return sum(
        math.exp(value.logprob) * (value.logprob - ours.get(token, least))
        for token, value in reference.logprobs[0].items()
    )


def test_the_report_counts_what_was_chosen(engine, passages):
    chunks = passages(4)
    engine.prewarm(chunks, progress=False)
    report = engine.generate(
        ChunkPrompt.chat(chunks[::-1], "Who lives at the harbour?"),
        policy="question",
        recompute_ratio=0.2,
        max_tokens=1,
    ).report
    repairable = [chunk for chunk in report.chunks if not chunk.reason.startswith("same prefix")]
    assert sum(chunk.recomputed for chunk in report.chunks) == math.ceil(0.2 * sum(c.tokens for c in repairable))
    assert all(chunk.recomputed >= 4 for chunk in repairable)
    assert len({chunk.recomputed for chunk in repairable}) > 1, "one budget over all chunks"
    assert report.policy == "question"


@pytest.mark.parametrize("name", ["engine", "sliced_engine"])
def test_misses_and_text_between_chunks(name, request, passages, outcomes):
    """Gaps in what is stored: the pass must not attend to them, and they are computed in the end."""
    one = request.getfixturevalue(name)
    hits, missed = passages(3), passages(1)
    one.prewarm(hits, progress=False)
    content = ["[1] ", hits[2], "[2] ", *missed, "[3] ", hits[0], hits[1], "Who grows pears?"]
    prompt = ChunkPrompt.from_messages([{"role": "user", "content": content}])
    plain = one.generate(prompt, reuse=False, fresh=True, **SAMPLING)
    answers = {
        ratio: one.generate(prompt, policy="question", recompute_ratio=ratio, **SAMPLING) for ratio in (0.999, 0.3)
    }
    assert outcomes(answers[0.999]) == ["HIT", "MISS", "HIT", "HIT"]
    assert divergence(plain, answers[0.999]) < 1e-5
    assert divergence(plain, answers[0.3]) < 0.5


def test_another_question_never_finds_its_blocks(engine, passages):
    chunks = passages(4, sentences=6)
    engine.prewarm(chunks, progress=False)
    first, second = (ChunkPrompt.chat(chunks[::-1], question) for question in QUESTIONS[:2])
    options = {"policy": "question", "recompute_ratio": 0.2, **SAMPLING}
    assert engine.generate(first, **options).report.prefix_cache_tokens == 0
    assert engine.generate(second, **options).report.prefix_cache_tokens == 0
    again = engine.generate(first, **options)
    assert again.report.prefix_cache_tokens > 0
    assert again.report.selection_tokens == 0, "the choice is remembered"


def test_many_at_once_are_as_one_by_one(sliced_engine, passages):
    chunks = passages(5)
    sliced_engine.prewarm(chunks, progress=False)
    prompts = [ChunkPrompt.chat(chunks[n:] + chunks[:n], question) for n in range(1, 5) for question in QUESTIONS]
    options = {"policy": "question", "recompute_ratio": 0.2, "max_tokens": 6}
    alone = [sliced_engine.generate(prompt, **options).text for prompt in prompts]
    assert [answer.text for answer in sliced_engine.generate_batch(prompts, **options)] == alone
