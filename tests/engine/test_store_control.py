"""Prewarming, pinning, deleting: bytes and index go together, then it is a miss."""

import asyncio

import pytest

from cachecraft_rag import Chunk, ChunkPrompt
from cachecraft_rag.errors import InvalidInput

QUESTION = "Who grows pears?"
SPACE = {"namespace": "control"}  # so that other tests' chunks do not count


def ask(engine, chunks, ratio=0.15, **options):
    """At a ratio of its own each, since vLLM's prefix cache keeps what a deleted chunk left behind."""
    return engine.generate(ChunkPrompt.chat(chunks, QUESTION), max_tokens=1, recompute_ratio=ratio, **SPACE, **options)


def test_prewarm_says_what_it_stored_and_what_was_there(engine, passages):
    chunks = passages(3)
    tokens = sum(len(engine.tokenizer.encode_chunk(chunk)) for chunk in chunks)
    before = engine.stats()["stored"]
    first = engine.prewarm([*chunks, chunks[0]], progress=False, **SPACE)
    assert set(first.stored) == {chunk.id for chunk in chunks}
    assert first.tokens == tokens
    again = engine.prewarm(chunks, progress=False, **SPACE)
    assert (again.stored, set(again.present), again.tokens) == ((), {chunk.id for chunk in chunks}, 0)
    # the first of a namespace stores the head and the stand-in passages too
    assert engine.stats()["stored"] - before in (3, 5)
    assert engine.check() == []


def test_prewarm_refuses_what_is_too_small_with_a_reason(engine, passages):
    small = Chunk("Bees.")
    report = engine.prewarm([small, *passages(1)], progress=False, **SPACE)
    assert "min_chunk_tokens=16" in report.refused[small.id]
    assert len(report.stored) == 1
    answer = ask(engine, [small, *passages(1)])
    assert answer.report.chunks[0].outcome == "REFUSED"
    assert "min_chunk_tokens=16" in answer.report.chunks[0].reason


def test_a_chunk_longer_than_the_context_names_both_numbers(engine, passages):
    (long,) = passages(1, 100)
    tokens = len(engine.tokenizer.encode_chunk(long))
    before = engine.stats()["stored"]
    with pytest.raises(InvalidInput, match=rf"{tokens} tokens.*2048") as caught:
        engine.prewarm([*passages(2), long], progress=False, **SPACE)
    assert long.id in str(caught.value)
    assert engine.stats()["stored"] == before, "nothing may be computed before the refusal"


async def test_concurrent_prewarms_of_the_same_chunks_refuse_nothing(engine, passages):
    chunks = passages(3, 6)
    reports = await asyncio.gather(*(engine.aprewarm(chunks, **SPACE) for _ in range(3)))
    assert [report.refused for report in reports] == [{}, {}, {}]
    for report in reports:
        assert {*report.stored, *report.present} == {chunk.id for chunk in chunks}
    assert sum(len(report.stored) for report in reports) == 3


async def test_a_request_waits_for_what_is_being_prewarmed(engine, passages, outcomes):
    chunks = passages(3, 6)
    prewarming = asyncio.create_task(engine.aprewarm(chunks, **SPACE))
    await asyncio.sleep(0.3)  # the question to the store comes before the chunks
    answer = await engine.agenerate(ChunkPrompt.chat(chunks[::-1], QUESTION), max_tokens=1, **SPACE)
    await prewarming
    assert outcomes(answer) == ["HIT"] * 3


def test_delete_chunks_then_a_miss(engine, passages, outcomes):
    a, b = passages(2)
    engine.prewarm([a, b], progress=False, **SPACE)
    used = engine.stats()["store_bytes"]
    assert outcomes(ask(engine, [a, b], 0.11)) == ["HIT", "HIT"]
    assert engine.delete(chunk_ids=[a.id, "unknown"], **SPACE) == [a.id]
    stats = engine.stats()
    share = stats["store_bytes"] / used
    assert stats["store_bytes"] == stats["used_bytes"]
    assert share < 1
    assert outcomes(ask(engine, [b, a], 0.12)) == ["HIT", "MISS"]
    assert engine.check() == []


def test_a_deleted_chunk_is_not_found_in_the_prefix_cache_either(engine, passages, outcomes):
    """The very same request again, of more than a block: what was deleted must not be answered from."""
    chunks = passages(2, 6)
    engine.prewarm(chunks, progress=False, **SPACE)
    for _ in range(2):
        ask(engine, chunks, 0.13)
    engine.delete(chunk_ids=[chunk.id for chunk in chunks], **SPACE)
    answer = ask(engine, chunks, 0.13)
    assert answer.report.prefix_cache_tokens == 0
    assert outcomes(answer) == ["MISS", "MISS"]


def test_delete_a_document_but_not_what_another_shares(engine, passages, outcomes):
    own, shared = (chunk.text for chunk in passages(2))
    engine.prewarm([Chunk(own, "a.md"), Chunk(shared, "a.md")], progress=False, **SPACE)
    engine.prewarm([Chunk(shared, "b.md")], progress=False, **SPACE)
    assert engine.delete(document_id="a.md", **SPACE) == [Chunk(own).id]
    assert outcomes(ask(engine, [shared, own], 0.14)) == ["HIT", "MISS"]
    assert engine.delete(document_id="a.md", **SPACE) == []
    assert engine.delete(document_id="b.md", **SPACE) == [Chunk(shared).id]


def test_delete_everything_of_one_namespace(engine, passages, outcomes):
    chunks = passages(2)
    engine.prewarm(chunks, progress=False, **SPACE)
    engine.prewarm(chunks, progress=False, namespace="kept")
    before = engine.stats()
    gone = engine.delete(everything=True, **SPACE)
    assert {chunk.id for chunk in chunks} <= set(gone)
    after = engine.stats()
    assert after["store_bytes"] == after["used_bytes"] < before["used_bytes"]
    assert after["deleted"] > before["deleted"]
    assert outcomes(ask(engine, chunks, 0.16)) == ["MISS", "MISS"]
    kept = engine.generate(ChunkPrompt.chat(chunks, QUESTION), max_tokens=1, namespace="kept")
    assert outcomes(kept) == ["HIT", "HIT"]
    assert engine.check() == []


def test_deleted_right_behind_an_answer_nothing_comes_back(engine, passages, outcomes):
    """What the answer missed is being stored while it is deleted, most of it still waiting for its turn."""
    chunks = passages(6)
    ask(engine, chunks, 0.17)
    engine.delete(everything=True, **SPACE)
    assert engine.prewarm([passages(1)[0]], progress=False, **SPACE).refused == {}  # behind all that was queued
    assert outcomes(ask(engine, chunks, 0.18)) == ["MISS"] * 6
    assert engine.check() == []


def test_pinning_takes_chunks_that_another_prewarm_is_storing(engine, passages):
    chunks = passages(3)

    async def both():
        return await asyncio.gather(engine.aprewarm(chunks, **SPACE), engine.aprewarm(chunks, pin=True, **SPACE))

    before = engine.stats()["pinned"]
    asyncio.run(both())
    assert engine.stats()["pinned"] - before == 3
    engine.delete(chunk_ids=[chunk.id for chunk in chunks], **SPACE)


@pytest.mark.parametrize(
    "arguments", [{}, {"chunk_ids": [], "everything": True}, {"chunk_ids": ["a"], "document_id": "b"}]
)
def test_delete_takes_exactly_one_selection(engine, arguments):
    with pytest.raises(InvalidInput, match="exactly one"):
        engine.delete(**arguments)


def test_an_empty_list_of_chunks_deletes_nothing(engine, passages):
    engine.prewarm(passages(1), progress=False, **SPACE)
    assert engine.delete(chunk_ids=[], **SPACE) == []
    assert engine.prewarm([], progress=False, **SPACE).stored == ()
