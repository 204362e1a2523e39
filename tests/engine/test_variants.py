"""Chunks that are kept as they were computed behind others, and the published rule that reuses them."""

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.errors import InvalidInput

SAMPLING = {"max_tokens": 4, "logprobs": 5}
OPTIONS = {"policy": "cachecraft", "recompute_ratio": 0.3}


@pytest.fixture(scope="module")
def keeper(start_engine):
    options = {"keep_variants": 2, "stand_in": ()}
    with start_engine(max_num_batched_tokens=256, enable_prefix_caching=False, **options) as engine:
        yield engine


def ask(chunks, question="Who lives at the harbour?"):
    return ChunkPrompt.chat(chunks, question)


def test_the_same_chunks_in_the_same_order_are_exact_again(keeper, passages, assert_exact):
    chunks = passages(5)
    report = keeper.prewarm_variants([chunks], progress=False)
    assert (report.chunks, report.stored) == (4, 4)
    ours = keeper.generate(ask(chunks), **OPTIONS, **SAMPLING)
    assert all(chunk.exact and chunk.recomputed == 0 for chunk in ours.report.chunks)
    assert [chunk.reason for chunk in ours.report.chunks][2] == (
        "same prefix as when it was stored; the variant behind 2 pieces"
    )
    assert_exact(keeper, ask(chunks), ours)


def test_in_another_order_each_is_repaired_by_its_overhead(keeper, passages):
    chunks = passages(5)
    keeper.prewarm(chunks, progress=False)
    keeper.prewarm_variants([chunks], progress=False)
    report = keeper.generate(ask([chunks[n] for n in (0, 1, 3, 2, 4)]), **OPTIONS, **SAMPLING).report
    assert report.hits == 5
    lines = report.chunks
    assert [line.exact for line in lines] == [True, True, False, False, False]
    assert 0 < lines[4].recomputed < 0.15 * lines[4].tokens, "nearly its own context"
    assert "variant behind 4 pieces" in lines[4].reason
    reversed_report = keeper.generate(ask(chunks[::-1]), **OPTIONS, **SAMPLING).report
    assert not any("variant" in line.reason for line in reversed_report.chunks[1:4]), "nothing it saw is left in order"


def test_a_full_prefill_leaves_variants_and_other_policies_do_not_read_them(keeper, passages, outcomes):
    chunks = passages(3)
    first = keeper.generate(ask(chunks), recompute_ratio=1.0, **SAMPLING)
    assert first.report.variants_stored == 2
    assert outcomes(first) == ["MISS"] * 3
    again = keeper.generate(ask(chunks), recompute_ratio=1.0, **SAMPLING)
    assert again.report.variants_stored == 0, "they are there"
    naive = keeper.generate(ask(chunks), policy="none", **SAMPLING).report
    assert not any("variant" in line.reason for line in naive.chunks)


def test_what_was_repaired_is_never_kept(keeper, passages):
    chunks = passages(4)
    keeper.prewarm(chunks[:2], progress=False)
    assert keeper.generate(ask(chunks), recompute_ratio=0.3, **SAMPLING).report.variants_stored == 0


def test_no_more_are_kept_than_allowed(keeper, passages):
    before = keeper.stats()["variants"]
    a, b, c, last = passages(4)
    keeper.prewarm_variants([[a, last], [b, last], [c, last]], progress=False)
    assert keeper.stats()["variants"] == before + 2
    assert keeper.check() == []


def test_deleting_a_chunk_takes_its_variants(keeper, passages):
    chunks = passages(3)
    keeper.prewarm_variants([chunks], progress=False)
    before = keeper.stats()["variants"]
    assert keeper.delete(chunk_ids=[chunks[2].id]) == [chunks[2].id]
    assert keeper.stats()["variants"] == before - 1


def test_they_survive_a_restart_on_disk(start_engine, passages, tmp_path):
    chunks = passages(3)
    with start_engine(keep_variants=1, stand_in=(), store_dir=tmp_path) as engine:
        engine.prewarm(chunks, progress=False)
        engine.prewarm_variants([chunks], progress=False)
        before = engine.generate(ask(chunks[::-1]), **OPTIONS, **SAMPLING)
    with start_engine(keep_variants=1, stand_in=(), store_dir=tmp_path) as engine:
        assert engine.stats()["variants"] == 2
        after = engine.generate(ask(chunks[::-1]), **OPTIONS, **SAMPLING)
        assert all(chunk.exact for chunk in engine.generate(ask(chunks), **OPTIONS, **SAMPLING).report.chunks)
    assert after.text == before.text
    assert [line.recomputed for line in after.report.chunks] == [line.recomputed for line in before.report.chunks]


def test_without_the_option_nothing_can_be_kept(engine, passages):
    with pytest.raises(InvalidInput, match="keep_variants"):
        engine.prewarm_variants([passages(2)], progress=False)


def test_an_order_that_cannot_be_is_refused_before_anything_runs(keeper, passages):
    with pytest.raises(InvalidInput, match="order 1 has 0 chunks"):
        keeper.prewarm_variants([passages(2), []], progress=False)
