"""Faults of files and disks under a real engine: each ends in the right answer, with the reason in the report."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.bench.faults import FAULTS, flip_bit, full_disk
from cachecraft_rag.errors import EngineClosed, InvalidInput, StoreError
from cachecraft_rag.store.audit import audit
from cachecraft_rag.store.directory import StoreDirectory

COUNT = 3
FIXED = 2  # files of the head and of the stand-in passages
SMALL = {"enable_prefix_caching": False, "max_num_batched_tokens": 256}


def files(store_dir):
    return sorted(Path(store_dir).rglob("*.safetensors"), key=lambda path: path.stat().st_size)


def processes(engine):
    return engine._client.requests._llm.engine_core.resources.engine_manager.processes


REASONS = {
    "truncated": "damaged",
    "zeroed": "damaged",
    "bit flipped": "checksum",
    "vanished": "vanished",
    "read fails": "cannot be read",
}


@pytest.fixture(scope="module")
def full_store(start_engine, tmp_path_factory):
    """A folder with the canonical KV of some chunks, and these chunks."""
    from cachecraft_rag.verification.cases import passage

    folder = tmp_path_factory.mktemp("faults") / "store"
    chunks = [passage(seed, 6) for seed in range(700, 700 + COUNT)]
    with start_engine(store_dir=folder) as engine:
        engine.prewarm(chunks, progress=False)
    assert len(files(folder)) == COUNT + FIXED
    return folder, chunks


def full_paths(folder, chunks):
    """The files of these chunks."""
    ids = {chunk.id for chunk in chunks}
    return {path for path in files(folder) if any(name in path.read_bytes()[:20_000].decode("latin-1") for name in ids)}


@pytest.fixture
def store_copy(full_store, tmp_path):
    folder, chunks = full_store
    shutil.copytree(folder, tmp_path / "store")
    return tmp_path / "store", chunks


def test_harmed_between_lookup_and_load(store_copy, start_engine, passages, assert_exact):
    """Memory holds one prompt's chunks: asking for others sends these to disk, where a file is harmed."""
    folder, chunks = store_copy
    others = passages(COUNT, 6)
    with start_engine(store_dir=folder, cpu_store_gb=0.0245, **SMALL) as engine:
        engine.prewarm(others, progress=False)
        for number, (name, harm) in enumerate(FAULTS.items()):
            engine.prewarm(chunks, progress=False)
            ours = full_paths(folder, chunks)
            assert len(ours) == COUNT
            assert engine.generate(ChunkPrompt.chat(others, "Others?"), max_tokens=1).report.hits == COUNT
            harm(sorted(ours)[0])
            prompt = ChunkPrompt.chat(chunks, f"Question {number}?")
            answer = engine.generate(prompt, max_tokens=4, logprobs=5, policy="none", recompute_ratio=0.0)
            (refused,) = [chunk for chunk in answer.report.chunks if chunk.outcome == "REFUSED"]
            assert refused.recomputed == refused.tokens
            assert REASONS[name] in refused.reason
            assert answer.report.hits == COUNT - 1
            assert engine.check() == []
        engine.prewarm(chunks, progress=False)
        assert engine.generate(ChunkPrompt.chat(chunks, "At last?"), max_tokens=1).report.hits == COUNT
        assert_exact(engine, ChunkPrompt.chat(chunks, "At last?"))
    assert audit(StoreDirectory(folder)).faults == ()


def test_all_are_harmed_and_the_answer_is_that_of_plain_vllm(store_copy, start_engine, passages, assert_exact):
    folder, chunks = store_copy
    with start_engine(store_dir=folder, **SMALL) as engine:
        for path in files(folder):
            flip_bit(path)
        prompt = ChunkPrompt.chat(chunks, "What now?")
        answer = engine.generate(prompt, max_tokens=4, logprobs=5, policy="none", recompute_ratio=0.0)
        assert [chunk.outcome for chunk in answer.report.chunks] == ["REFUSED"] * COUNT
        assert all(chunk.exact for chunk in answer.report.chunks)
        assert_exact(engine, prompt, answer)
        engine.prewarm(passages(1), progress=False)  # reads the stand-in passages
        assert engine.check() == []
    assert audit(StoreDirectory(folder)).faults == ()


def test_killed_while_storing(start_engine, tmp_path, passages):
    chunks = passages(12, 6)
    with start_engine(store_dir=tmp_path / "store") as engine:
        future = engine._open().submit(engine._prewarm(chunks, None, False, False))
        while len(files(tmp_path / "store")) < 1 + FIXED:
            pass
        for process in processes(engine):
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineClosed):
            future.result()
    survivors = len(files(tmp_path / "store"))
    (next((tmp_path / "store").glob("*/")) / "0011223344556677.partial").write_bytes(b"half")
    with start_engine(store_dir=tmp_path / "store") as engine:
        assert not list(Path(tmp_path / "store").rglob("*.partial"))
        assert engine.stats()["chunks_on_disk"] in range(survivors - FIXED, survivors + 1)
        report = engine.prewarm(chunks, progress=False)
        assert len(report.present) >= survivors - FIXED
        assert len(report.present) + len(report.stored) == len(chunks)
        answer = engine.generate(ChunkPrompt.chat(chunks[:4], "All there?"), max_tokens=1)
        assert answer.report.hits == 4
        assert engine.check() == []
    assert audit(StoreDirectory(tmp_path / "store")).faults == ()


def test_a_full_disk_does_not_stop_serving(start_engine, tmp_path, passages, capfd):
    chunks = passages(3, 6)
    with start_engine(store_dir=tmp_path / "store", **SMALL) as engine:
        engine.prewarm(chunks[:1], progress=False)
        (process,) = processes(engine)
        with full_disk(process.pid):
            report = engine.prewarm(chunks, progress=False)
            assert len(report.stored) == 2
            answer = engine.generate(ChunkPrompt.chat(chunks[::-1], "Still there?"), max_tokens=1)
            assert answer.report.hits == 3
            assert engine.check() == []
        more = passages(1, 6)
        engine.prewarm(more, progress=False)
    assert len(files(tmp_path / "store")) == FIXED + 2  # the first, and the last
    assert audit(StoreDirectory(tmp_path / "store")).faults == ()
    assert capfd.readouterr().err.count("kept in memory only") == 1


def test_read_only_writes_nothing(store_copy, start_engine, passages, outcomes):
    folder, chunks = store_copy
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}
    with start_engine(store_dir=folder, read_only=True) as engine:
        (new,) = passages(1)
        for _ in range(2):
            answer = engine.generate(ChunkPrompt.chat([*chunks[::-1], new], "Who?"), max_tokens=1)
            assert outcomes(answer)[-1] == "MISS" or answer.report.prefix_cache_tokens
        for call in (lambda: engine.prewarm([new]), lambda: engine.delete(everything=True)):
            with pytest.raises(InvalidInput, match="read-only"):
                call()
        assert engine.stats()["stored"] == 0
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")} == before


def test_what_cannot_be_a_store_is_an_error_at_start(start_engine, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="file"), start_engine(store_dir=tmp_path / "file"):
        pass
    with pytest.raises(StoreError, match="nowhere"), start_engine(store_dir=tmp_path / "nowhere", read_only=True):
        pass


def test_another_dtype_finds_nothing(store_copy, start_engine, outcomes):
    folder, chunks = store_copy
    with start_engine(store_dir=folder, dtype="bfloat16") as engine:
        answer = engine.generate(ChunkPrompt.chat(chunks, "Who?"), max_tokens=1)
        assert outcomes(answer) == ["MISS"] * COUNT
    assert len(list(folder.glob("*/model.json"))) == 2


@pytest.mark.parametrize("tiers", ["memory", "disk"])
def test_more_chunks_than_memory_holds(store_copy, start_engine, passages, tiers, tmp_path):
    """A stream of orders over more chunks than fit: bytes stay below the budget, and with a disk all stay hits."""
    chunks = passages(8, 6)
    options = {"store_dir": tmp_path / "large"} if tiers == "disk" else {"store_dir": None}
    with start_engine(cpu_store_gb=0.045, **options, **SMALL) as engine:
        engine.prewarm(chunks, progress=False)
        hits = 0
        for turn in range(6):
            order = [chunks[(turn * 3 + step) % 8] for step in range(4)]
            answer = engine.generate(ChunkPrompt.chat(order, "Which?"), max_tokens=1)
            hits += answer.report.hits
            stats = engine.stats()
            assert stats["store_bytes"] <= stats["capacity_bytes"]
        assert engine.check() == []
        assert hits == 24 if tiers == "disk" else hits < 24
