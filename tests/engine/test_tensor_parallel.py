"""Three ranks on a CPU, each with one of the model's three KV heads: the same answers, and files of their own."""

from contextlib import contextmanager

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.verification.compare import compare

pytestmark = pytest.mark.slow

RANKS = 3
QUESTION = "Who keeps bees?"
SAMPLING = {"max_tokens": 4, "logprobs": 20}
POLICIES = ["none", "first", "question", "deviation"]


@pytest.fixture
def start_ranks(start_engine, monkeypatch, tmp_path):
    """Over the same folder each time; memory holds all, the device of each rank a part."""
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # there may be fewer cores than ranks

    @contextmanager
    def start():
        options = {"tensor_parallel_size": RANKS, "max_logprobs": 500}
        with start_engine(
            store_dir=tmp_path, enable_prefix_caching=False, device_store_gb=0.01, vllm_args=options
        ) as ranks:
            yield ranks

    return start


def ask(engine, prompt, policy):
    ratio = 0.0 if policy == "none" else 0.2
    return engine.generate(prompt, policy=policy, recompute_ratio=ratio, **SAMPLING)


def test_ranks_answer_like_one_and_serve_from_disk_later(
    engine, start_ranks, start_engine, passages, tmp_path, assert_exact
):
    chunks = passages(3, 6)
    prompt = ChunkPrompt.chat(chunks[::-1], QUESTION)
    engine.prewarm(chunks, progress=False)
    expected = {policy: ask(engine, prompt, policy) for policy in POLICIES}
    with start_ranks() as ranks:
        assert len(ranks.prewarm(chunks, progress=False).stored) == 3
        answers = {policy: ask(ranks, prompt, policy) for policy in POLICIES}
        for policy, answer in answers.items():
            assert answer.report.hits == 3
            assert answer.token_ids == expected[policy].token_ids
            assert compare(expected[policy], answer).logprob < 1e-2
        assert_exact(ranks, prompt)
        stats = ranks.stats()
        assert stats["chunks_on_disk"] == 3
        assert stats["device_hits"] > 0
        assert ranks.check() == []
    folders = [path for path in tmp_path.iterdir() if path.is_dir()]
    assert len(folders) == RANKS
    assert len({tuple(sorted(path.name for path in folder.glob("*.safetensors"))) for folder in folders}) == 1
    by_size = sorted(folders[1].glob("*.safetensors"), key=lambda path: path.stat().st_size)
    gone = by_size[-2]  # a chunk; the stand-in passages are the largest
    gone.unlink()
    with start_ranks() as later:
        answer = ask(later, prompt, "none")
        assert answer.report.hits == 2
        assert later.stats()["promoted"] in (3, 4)  # with the head; the passages once the third is stored anew
        again = ask(later, prompt, "none")
        assert again.report.hits == 3, "what one rank lacked is stored anew on all"
        assert compare(answers["none"], again).logprob < 1e-2
        assert later.check() == []
    with start_engine(store_dir=tmp_path) as alone:
        assert alone.generate(prompt, max_tokens=1).report.misses == 3
