"""What must not mix: repaired KV and plain requests, tenants, kinds of requests; and requests from elsewhere."""

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.report import RequestReport
from cachecraft_rag.vllm.salts import cache_salt
from cachecraft_rag.vllm.sampling import make_sampling

SAMPLING = {"max_tokens": 4, "logprobs": 5}
QUESTION = "Who bought two blue lamps?"


def test_plain_answers_never_change(engine, passages, assert_exact):
    chunks = passages(3, 4)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks[::-1], QUESTION)
    before = engine.generate(prompt, reuse=False, **SAMPLING)
    for ratio in (0.0, 1.0):
        engine.generate(prompt, recompute_ratio=ratio, **SAMPLING)
        after = engine.generate(prompt, reuse=False, **SAMPLING)
        assert after.report is None
        assert_exact(engine, prompt, after)
        assert after.token_ids == before.token_ids


def test_a_chunk_request_before_the_first_plain_one(engine, passages, assert_exact):
    chunks = passages(3, 6)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks[::-1], QUESTION)
    engine.generate(prompt, policy="none", **SAMPLING)
    assert_exact(engine, prompt, engine.generate(prompt, reuse=False, **SAMPLING))


def test_blocks_of_one_ratio_serve_no_other(engine, passages, assert_exact):
    chunks = passages(3, 6)
    engine.prewarm(chunks, progress=False)
    prompt = ChunkPrompt.chat(chunks[::-1], QUESTION)
    for options in ({"recompute_ratio": 0.0}, {"recompute_ratio": 0.2}, {"policy": "random", "recompute_ratio": 0.2},
                    {"recompute_ratio": 0.2, "min_run": 4}, {"recompute_ratio": 1.0}):  # fmt: skip
        assert engine.generate(prompt, **options, **SAMPLING).report.prefix_cache_tokens == 0
        assert engine.generate(prompt, **options, **SAMPLING).report.prefix_cache_tokens > 0
    assert_exact(engine, prompt)


def test_two_tenants_share_nothing(engine, passages, outcomes):
    chunks = passages(2, 6)
    prompt = ChunkPrompt.chat(chunks, QUESTION)
    stored = engine.prewarm(chunks, namespace="red", progress=False)
    assert len(stored.stored) == 2
    assert outcomes(engine.generate(prompt, namespace="red", **SAMPLING)) == ["HIT", "HIT"]
    blue = engine.generate(prompt, namespace="blue", **SAMPLING)
    assert outcomes(blue) == ["MISS", "MISS"]
    assert blue.report.prefix_cache_tokens == 0
    assert len(engine.prewarm(chunks, namespace="green", progress=False).stored) == 2
    assert engine.delete(everything=True, namespace="red")
    assert engine.pin([chunk.id for chunk in chunks], namespace="red") == []
    assert len(engine.pin([chunk.id for chunk in chunks], pinned=False, namespace="green")) == 2
    assert engine.check() == []


def test_bos_is_there_as_often_as_the_template_writes_it(engine, passages):
    """SmolLM2's template writes its first marker once for each message, and its tokenizer adds no BOS."""
    prompt = ChunkPrompt.chat(passages(2), QUESTION)
    ids = engine.tokenizer.encode(prompt).token_ids
    head = engine.tokenizer.head_token_ids
    assert ids[: len(head)] == head
    bos = head[0]
    assert ids[0] == bos
    assert ids[1] != bos
    report = engine.generate(prompt, **SAMPLING).report
    assert report.prompt_tokens == len(ids)


def send(engine, wire, salt, tokens):
    """A request as a server's client might send it, past the checks of our own front end: report and token ids."""

    async def ask():
        ids = []
        sampling = make_sampling(None, {"max_tokens": 4})
        sampling.extra_args = {"kv_transfer_params": {"cachecraft": wire}}
        prompt = {"prompt_token_ids": list(tokens)}
        if salt is not None:
            prompt["cache_salt"] = salt
        async for output in engine._client.requests._llm.generate(prompt, sampling, f"foreign-{id(sampling)}"):
            ids += output.outputs[0].token_ids
        return RequestReport.from_dict(output.kv_transfer_params["cachecraft"]["report"]), tuple(ids)

    return engine._loop.run(ask())


@pytest.fixture
def foreign(engine, passages):
    """Encoded prompt of two stored chunks, and its wire parameters."""
    chunks = passages(2, 6)
    engine.prewarm(chunks, progress=False)
    encoded = engine.tokenizer.encode(ChunkPrompt.chat(chunks[::-1], QUESTION))
    return encoded, engine._client.request_params(encoded)


@pytest.mark.parametrize("salt", [None, "mine", "of another ratio"])
def test_a_request_with_a_wrong_salt_is_refused_and_plain(engine, foreign, salt):
    encoded, params = foreign
    if salt == "of another ratio":
        other = engine._client.request_params(encoded, recompute_ratio=0.77)
        salt = cache_salt(engine._client.requests._secret, other)
    report, ids = send(engine, params.to_wire(), salt, encoded.token_ids)
    assert report.refused == 2
    assert all("cache_salt" in chunk.reason for chunk in report.chunks)
    assert report.reused_tokens == 0
    assert ids == engine._loop.run(plain_ids(engine, encoded.token_ids))


async def plain_ids(engine, tokens):
    ids = []
    requests = engine._client.requests
    collector = await requests.enqueue(tokens, make_sampling(None, {"max_tokens": 4}), None, salt="apart")
    async for output in requests.outputs(collector):
        ids += output.outputs[0].token_ids
    return tuple(ids)


@pytest.mark.parametrize(
    "wire",
    [
        3,
        "text",
        [1],
        {},
        {"namespace": "default"},
        {"namespace": "default", "policy": "best", "ratio": 0.1, "segments": [[0, 5, None, None, None]]},
        {"namespace": "default", "policy": "first", "ratio": 7, "segments": [[0, 5, None, None, None]]},
        {"namespace": "default", "policy": "first", "ratio": 0.1, "segments": [[0, 4, None, None, None]]},
    ],
    ids=repr,
)
def test_garbage_is_refused_with_a_reason_and_the_engine_lives(engine, wire):
    report, ids = send(engine, wire, "mine", [1, 2, 3, 4, 5])
    assert report.warnings
    assert report.reused_tokens == 0
    assert ids == engine._loop.run(plain_ids(engine, [1, 2, 3, 4, 5]))
    assert engine.check() == []


def test_prompt_logprobs_are_refused_and_still_answered(engine, passages, outcomes):
    chunks = passages(2)
    engine.prewarm(chunks, progress=False)
    answer = engine.generate(ChunkPrompt.chat(chunks, QUESTION), prompt_logprobs=1, max_tokens=2)
    assert outcomes(answer) == ["REFUSED", "REFUSED"]
    assert all("prompt_logprobs" in line.reason for line in answer.report.chunks)
