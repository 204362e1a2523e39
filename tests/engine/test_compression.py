"""KV kept in 8 bits: hits like any others, close to the uncompressed ones, and a store of its own."""

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.verification.compare import compare

SAMPLING = {"max_tokens": 4, "logprobs": 20}


def test_compressed_chunks_are_hits_and_nearly_the_same(engine, start_engine, passages, tmp_path, assert_exact):
    chunks = passages(3, 6)
    prompt = ChunkPrompt.chat(chunks, "Who keeps bees?")
    naive = {"policy": "none", "recompute_ratio": 0.0, **SAMPLING}
    engine.prewarm(chunks, progress=False)
    reference = engine.generate(prompt, **naive)
    options = {"compress": True, "store_dir": tmp_path / "store", "enable_prefix_caching": False}
    with start_engine(**options) as small:
        small.prewarm(chunks, progress=False)
        answer = small.generate(prompt, **naive)
        assert answer.report.hits == 3
        assert not any(chunk.exact for chunk in answer.report.chunks)
        assert "compressed" in answer.report.chunks[0].reason
        difference = compare(reference, answer).logprob
        assert 0.0 < difference < 0.5
        per_token = [one.stats()["used_bytes"] / one.stats()["tokens"] for one in (small, engine)]
        assert per_token[0] < 0.3 * per_token[1]
        assert_exact(small, prompt)
        assert small.check() == []
    with start_engine(**options) as later:
        again = later.generate(prompt, **naive)
        assert again.report.hits == 3
        assert later.stats()["promoted"] == 4
        assert compare(answer, again).logprob < 1e-3
    with start_engine(**{**options, "compress": False}) as other:
        assert other.generate(prompt, **naive).report.misses == 3
    print(f"largest difference of a log-probability by compression: {difference:.4f}")
