"""The disk tier in ordinary use: orders, deletions, documents, tenants."""

import itertools

from cachecraft_rag import Chunk, ChunkPrompt
from cachecraft_rag.store.audit import audit
from cachecraft_rag.store.catalogue import items
from cachecraft_rag.store.directory import StoreDirectory


def stored(store_dir, namespace=None):
    """Ids of the chunks on disk."""
    found = items(StoreDirectory(store_dir, read_only=True))
    return {i.header.chunk_id for i in found if i.header.chunk_id and namespace in (None, i.header.namespace)}


def test_a_stream_of_new_orders_stores_nothing_and_evicts_nothing(start_engine, passages, tmp_path):
    chunks = passages(4, 3)
    with start_engine(store_dir=tmp_path / "store", enable_prefix_caching=False) as engine:
        engine.prewarm(chunks, progress=False)
        before = engine.stats()
        for order in itertools.islice(itertools.permutations(chunks), 0, 24, 3):
            answer = engine.generate(ChunkPrompt.chat(order, "Which?"), max_tokens=1)
            assert answer.report.hits == 4
        assert engine.stats() == before
    assert audit(StoreDirectory(tmp_path / "store")).faults == ()


def test_what_is_deleted_is_gone_from_disk_when_delete_returns(start_engine, passages, tmp_path, outcomes):
    store_dir = tmp_path / "store"
    own, shared, other = (chunk.text for chunk in passages(3, 3))
    with start_engine(store_dir=store_dir) as engine:
        engine.prewarm([Chunk(own, "a.md"), Chunk(shared, "a.md"), Chunk(other, "b.md")], progress=False)
        engine.prewarm([Chunk(shared, "b.md")], progress=False)
        assert engine.delete(document_id="a.md") == [Chunk(own).id]
        assert stored(store_dir) == {Chunk(shared).id, Chunk(other).id}
        engine.delete(chunk_ids=[Chunk(other).id])
        assert stored(store_dir) == {Chunk(shared).id}
        answer = engine.generate(ChunkPrompt.chat([own, shared, other], "Who?"), max_tokens=1)
        assert outcomes(answer) == ["MISS", "HIT", "MISS"]
    with start_engine(store_dir=store_dir) as engine:
        assert engine.delete(document_id="b.md") == [Chunk(shared).id], "documents outlive the process"
        engine.delete(everything=True)
        assert stored(store_dir) == set()
        assert engine.stats()["chunks"] == 0
    assert audit(StoreDirectory(store_dir)).faults == ()


def test_tenants_have_files_of_their_own(start_engine, passages, tmp_path, outcomes):
    store_dir = tmp_path / "store"
    chunks = passages(2, 3)
    prompt = ChunkPrompt.chat(chunks, "Who?")
    with start_engine(store_dir=store_dir, store_misses=False) as engine:
        engine.prewarm(chunks, namespace="red", progress=False)
        assert outcomes(engine.generate(prompt, namespace="blue", max_tokens=1)) == ["MISS", "MISS"]
        engine.prewarm(chunks, namespace="blue", progress=False)
    with start_engine(store_dir=store_dir, store_misses=False) as engine:
        assert engine.delete(everything=True, namespace="blue")
        assert stored(store_dir, "blue") == set()
        assert len(stored(store_dir, "red")) == 2
        assert engine.stats(namespace="blue")["chunks"] == 0
        assert engine.stats(namespace="red")["chunks"] == 2
        assert outcomes(engine.generate(prompt, namespace="blue", max_tokens=1)) == ["MISS", "MISS"]
        assert outcomes(engine.generate(prompt, namespace="red", max_tokens=1)) == ["HIT", "HIT"]
        assert engine.check() == []


def test_pins_stay_in_every_tier(start_engine, passages, tmp_path):
    """Memory and disk hold five chunks each; the pinned one is still there after eight others."""
    pinned, *others = passages(9, 6)
    with start_engine(store_dir=tmp_path / "store", cpu_store_gb=0.04, disk_store_gb=0.04) as engine:
        engine.prewarm([pinned], pin=True, progress=False)
        for one in others:
            engine.prewarm([one], progress=False)
            stats = engine.stats()
            assert stats["store_bytes"] <= stats["capacity_bytes"]
            assert stats["disk_bytes"] <= stats["disk_capacity_bytes"]
        answer = engine.generate(ChunkPrompt.chat([others[-1], pinned], "Who?"), max_tokens=1)
        assert answer.report.hits == 2
    assert pinned.id in stored(tmp_path / "store")
    assert StoreDirectory(tmp_path / "store").recount() <= 0.04 * (1 << 30)
