"""KV kept in 8 bits: hits like any others, close to the uncompressed ones, and a store of its own."""

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.verification.compare import compare

SAMPLING = {"max_tokens": 4, "logprobs": 20}


@pytest.mark.parametrize(("compress", "limit"), [("int8", 0.5), ("fp8", 1.5)])
def test_compressed_chunks_are_hits_and_nearly_the_same(
    engine, start_engine, passages, tmp_path, assert_exact, compress, limit
):
    chunks = passages(3, 6)
    prompt = ChunkPrompt.chat(chunks, "Who keeps bees?")
    naive = {"policy": "none", "recompute_ratio": 0.0, **SAMPLING}
    engine.prewarm(chunks, progress=False)
    reference = engine.generate(prompt, **naive)
    options = {"compress": compress, "store_dir": tmp_path / "store", "enable_prefix_caching": False}
    with start_engine(**options) as small:
        small.prewarm(chunks, progress=False)
        answer = small.generate(prompt, **naive)
        assert answer.report.hits == 3
        assert not any(chunk.exact for chunk in answer.report.chunks)
        assert "compressed" in answer.report.chunks[0].reason
        difference = compare(reference, answer).logprob
        assert 0.0 < difference < limit
        per_token = [one.stats()["used_bytes"] / one.stats()["tokens"] for one in (small, engine)]
        assert per_token[0] < 0.3 * per_token[1]
        assert_exact(small, prompt)
        assert small.check() == []
    with start_engine(**options) as later:
        again = later.generate(prompt, **naive)
        assert again.report.hits == 3
        assert later.stats()["promoted"] == 4
        assert compare(answer, again).logprob < 1e-3
    print(f"{compress}: largest difference of a log-probability by compression: {difference:.4f}")


def test_what_was_compressed_in_another_way_is_a_miss(start_engine, passages, tmp_path):
    chunks = passages(2)
    with start_engine(compress="fp8", store_dir=tmp_path) as small:
        small.prewarm(chunks, progress=False)
    with start_engine(compress="int8", store_dir=tmp_path) as other:
        assert other.generate(ChunkPrompt.chat(chunks, "Who?"), max_tokens=1).report.misses == 2
