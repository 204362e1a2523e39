"""The scheduler half with a disk tier: real files, and a worker that does what it is told."""

import json
import logging
import tempfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachecraft_rag.reuse import get_policy
from cachecraft_rag.store.audit import audit
from cachecraft_rag.vllm.protocol import prompt_digest
from cachecraft_rag.vllm.salts import cache_salt

HEAD = (1, 2, 3, 4)
A, B, C, D = (tuple(range(start, start + 20)) for start in (100, 200, 300, 400))
QUESTION = (7, 8, 9)
SECRET = "secret"
EVICTIONS = ("lru", "score")


@pytest.fixture
def start(make_fake_engine, tmp_path):
    """`start(...)`: another process on the same folder."""
    engines = []

    def make(**options):
        engines.append(make_fake_engine(store_dir=tmp_path / "store", **options))
        return engines[-1]

    yield make
    for engine in engines:
        engine.io.close()


def settle(engine):
    engine.step()
    engine.step()
    return engine


def file_of(engine, chunk):
    (found,) = [header for header in engine.disk.scan() if header.token_ids.tolist() == list(chunk)]
    return engine.disk.path(found.key)


def outcomes(report):
    return [chunk.outcome.value for chunk in report.chunks]


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_what_one_stores_the_next_serves(start):
    settle(start()).prewarm(A, B)
    other = start()
    report = other.serve(HEAD, B, A, QUESTION)
    assert outcomes(report) == ["HIT", "HIT"]
    stats = other.ask({"op": "stats"})
    assert (stats["promoted"], stats["chunks_in_memory"], stats["chunks_on_disk"]) == (3, 2, 2)
    assert other.check() == []


def test_prefetched_caches_are_in_memory_before_they_are_asked_for(start):
    settle(start()).prewarm(A, B)
    other = start()
    wanted = {"op": "prefetch", "chunk_ids": ["id-100", "id-300"]}
    assert other.ask(wanted, namespace="stranger")["prefetched"] == []
    assert other.ask(wanted)["prefetched"] == ["id-100"]
    assert settle(other).ask({"op": "stats"})["chunks_in_memory"] == 1
    assert other.ask(wanted)["prefetched"] == []
    assert other.check() == []


def test_prewarming_again_computes_and_reads_nothing(start):
    settle(start()).prewarm(A, B)
    other = start()
    chunks = [["id-100", "id-100", None], ["id-200", "id-200", None], ["id-300", "id-300", None]]
    assert other.ask({"op": "missing", "chunks": chunks})["missing"] == [2]
    report = other.serve(HEAD, A, A[-1:], prewarm=True, policy="none", ratio=0.0)
    assert outcomes(report) == ["HIT"]
    assert other.ask({"op": "stats"})["promoted"] == 0


def test_what_another_process_stores_meanwhile_is_found(start):
    early, late = start(), start()
    settle(late).prewarm(A)
    settle(late)
    assert outcomes(early.serve(HEAD, B, A, QUESTION)) == ["MISS", "HIT"]
    assert early.check() == []


def test_a_prompt_does_not_evict_its_own_chunks(start):
    engine = settle(start(store_tokens=len(HEAD) + 2 * 20))
    engine.prewarm(A, B, C)  # A has left memory, and B would be the next to go
    settle(engine)
    assert outcomes(engine.serve(HEAD, A, B, QUESTION)) == ["HIT", "HIT"]
    assert engine.ask({"op": "stats"})["promoted"] == 1
    assert engine.check() == []


def test_recomputing_all_reads_nothing(start):
    settle(start()).prewarm(A)
    other = start()
    report = other.serve(HEAD, A, QUESTION, ratio=1.0)
    assert outcomes(report) == ["HIT"]
    assert "recomputed in full" in report.chunks[0].reason
    assert other.ask({"op": "stats"})["promoted"] == 0


def test_what_the_prefix_cache_covers_is_not_read(start):
    settle(start()).prewarm(A, B)
    other = start()
    other.serve(HEAD, A, B, QUESTION, prefix=24)
    assert other.ask({"op": "stats"})["promoted"] == 1


def test_a_question_pass_reads_what_the_prefix_cache_covers_too(start):
    settle(start()).prewarm(A, B, C)
    other = start()
    params, ids = other.params(HEAD, C, A, B, QUESTION, policy="question", ratio=0.5)
    digest = prompt_digest(get_policy("question"), 0.5, np.array(ids, dtype=np.int32))
    salt = cache_salt(SECRET, replace(params, prompt=digest))
    request = other.arrive(HEAD, C, A, B, QUESTION, policy="question", ratio=0.5, salt=salt)
    other.schedule(request, prefix=44)
    (message,) = other.half.take_metadata().plans
    assert {span.start for span in message.plan.pending.keys} == {0, 4, 24, 44}
    assert other.half._index.stats().promoted == 4


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (flip_a_bit, "checksum"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "damaged"),
        (lambda path: path.unlink(), "vanished"),
    ],
    ids=["flipped", "truncated", "vanished"],
)
def test_a_file_harmed_after_the_lookup_is_computed_with_its_reason(start, harm, reason):
    settle(start()).prewarm(A, B)
    other = start()
    harm(file_of(other, A))
    report = other.serve(HEAD, B, A, QUESTION)
    assert outcomes(report) == ["HIT", "REFUSED"]
    assert reason in report.chunks[1].reason
    assert report.chunks[1].recomputed == len(A)
    settle(other)
    assert other.check() == []
    assert len(list(other.disk.scan())) == 2, "the damaged file is gone"
    assert audit(other.disk.directory).faults == ()
    assert outcomes(other.serve(HEAD, A, QUESTION)) == ["MISS"]
    settle(other)
    assert outcomes(start().serve(HEAD, B, A, QUESTION)) == ["HIT", "HIT"]


def test_two_requests_that_wait_for_the_same_read_both_learn_why_it_failed(start):
    settle(start()).prewarm(A)
    other = start()
    flip_a_bit(file_of(other, A))
    first, second = other.arrive(HEAD, B, A, QUESTION), other.arrive(HEAD, C, A, QUESTION)
    other.schedule(first)
    other.schedule(second)
    other.step()
    for request in (first, second):
        assert "checksum" in other.report(request).chunks[1].reason
    settle(other)
    assert other.check() == []


def test_memory_is_given_up_for_what_is_read_and_nothing_is_lost(start):
    settle(start()).prewarm(A, B, C, D)
    small = start(store_tokens=4 + 2 * 20)
    for pair in ((A, B), (C, D), (B, A), (D, C)):
        assert outcomes(small.serve(HEAD, *pair, QUESTION)) == ["HIT", "HIT"]
    stats = small.ask({"op": "stats"})
    assert stats["evicted"] == 0
    assert stats["demoted"] >= 6
    assert stats["used_bytes"] == stats["store_bytes"] <= stats["capacity_bytes"]
    assert small.check() == []


def test_where_memory_has_no_room_for_all_the_rest_is_computed(start):
    settle(start()).prewarm(A, B, C)
    small = start(store_tokens=4 + 2 * 20)
    report = small.serve(HEAD, A, B, C, QUESTION)
    assert outcomes(report) == ["HIT", "HIT", "REFUSED"]
    assert "no room" in report.chunks[2].reason
    assert small.check() == []


def test_deleting_removes_the_files(start):
    engine = settle(start())
    engine.prewarm(A, B)
    settle(engine)
    assert engine.ask({"op": "delete", "chunk_ids": ["id-100"]})["deleted"] == ["id-100"]
    settle(engine)
    changes = engine.ask({"op": "changes"})
    assert changes["made"] == changes["decided"]
    assert [header.chunk_id for header in engine.disk.scan() if header.chunk_id] == ["id-200"]
    assert outcomes(start().serve(HEAD, A, QUESTION)) == ["MISS"]


def test_deleted_while_it_is_being_written_it_does_not_come_back(start):
    engine = start()
    request = engine.arrive(HEAD, A, A[-1:], prewarm=True, policy="none", ratio=0.0)
    engine.schedule(request)
    engine.step()  # computed; the order to write it goes with the next step
    assert engine.ask({"op": "delete"})["deleted"] == ["id-100"]
    settle(engine)
    assert [header.chunk_id for header in engine.disk.scan()] == []
    assert engine.tensors == {}
    assert engine.check() == []


def test_documents_outlive_the_process(start):
    engine = settle(start())
    engine.prewarm(A, B)
    chunks = [["id-100", "id-100", "b.md"]]
    assert engine.ask({"op": "missing", "chunks": chunks})["missing"] == []
    settle(engine)
    other = start()
    assert other.ask({"op": "delete", "document_id": "a.md"})["deleted"] == ["id-200"]
    settle(other)
    third = start()
    assert third.ask({"op": "delete", "document_id": "b.md"})["deleted"] == ["id-100"]


def test_pins_outlive_the_process(start):
    engine = settle(start())
    engine.prewarm(A)
    engine.ask({"op": "pin", "chunk_ids": ["id-100"], "pinned": True})
    settle(engine)
    assert start().ask({"op": "stats"})["pinned"] == 1


def test_the_disk_budget_holds_and_the_least_used_go(start):
    probe = settle(start())
    probe.prewarm(A)
    settle(probe)
    size = file_of(probe, A).stat().st_size
    probe.ask({"op": "delete"})
    settle(probe)
    engine = start(disk_bytes=probe.disk.directory.recount() + 3 * size)
    for number in range(500, 2500, 100):
        engine.prewarm(tuple(range(number, number + 20)))
        settle(engine)
        assert engine.disk.directory.recount() <= engine.disk.directory.capacity_bytes
    stats = engine.ask({"op": "stats"})
    assert stats["disk_bytes"] <= stats["disk_capacity_bytes"]
    assert stats["chunks"] == 20, "memory still has them all"
    assert 1 <= stats["chunks_on_disk"] <= 3
    assert stats["chunks_on_disk"] == sum(header.chunk_id is not None for header in engine.disk.scan())
    assert engine.check() == []


def test_a_full_disk_is_said_once_and_serving_goes_on(start, caplog):
    engine = start(disk_bytes=100)
    with caplog.at_level(logging.WARNING):
        engine.prewarm(A, B, C)
        settle(engine)
    assert caplog.text.count("kept in memory only") == 1
    assert outcomes(engine.serve(HEAD, C, A, QUESTION)) == ["HIT", "HIT"]
    stats = engine.ask({"op": "stats"})
    assert stats["chunks_on_disk"] == 0
    assert engine.check() == []


def test_read_only_serves_and_writes_nothing(start):
    settle(start()).prewarm(A)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in start().disk.directory.root.rglob("*")}
    reader = start(read_only=True)
    assert outcomes(reader.serve(HEAD, B, A, QUESTION)) == ["MISS", "HIT"]
    assert outcomes(reader.serve(HEAD, B, A, QUESTION)) == ["MISS", "HIT"]
    settle(reader)
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in reader.disk.directory.root.rglob("*")} == before
    assert reader.ask({"op": "stats"})["stored"] == 0


def test_read_only_over_a_damaged_file_computes_and_does_not_try_again(start):
    settle(start()).prewarm(A)
    flip_a_bit(file_of(start(), A))
    reader = start(read_only=True)
    assert outcomes(reader.serve(HEAD, B, A, QUESTION)) == ["MISS", "REFUSED"]
    assert outcomes(reader.serve(HEAD, B, A, QUESTION)) == ["MISS", "MISS"]
    assert file_of(reader, A).exists()


def test_another_model_finds_nothing(start):
    settle(start()).prewarm(A)
    other = start(weights_fingerprint="other")
    assert outcomes(other.serve(HEAD, A, QUESTION)) == ["MISS"]
    settle(other)
    assert len({folder.name for folder in other.disk.directory.models()}) == 2
    described = [json.loads((folder / "model.json").read_text()) for folder in other.disk.directory.models()]
    assert {model["weights"] for model in described} == {"w", "other"}


def test_what_a_dead_writer_left_is_gone_at_the_next_start(start):
    engine = settle(start())
    engine.prewarm(A)
    settle(engine)
    (engine.disk.folder / "0123456789abcdef.partial").write_bytes(b"half")
    next_one = start()
    assert not list(next_one.disk.folder.glob("*.partial"))
    assert outcomes(next_one.serve(HEAD, A, QUESTION)) == ["HIT"]


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_thousand_random_operations_keep_both_budgets_and_clean_books(make_fake_engine, seed):
    with tempfile.TemporaryDirectory() as folder:
        engine = make_fake_engine(store_tokens=70, store_dir=folder, disk_bytes=9000, eviction=EVICTIONS[seed % 2])
        try:
            thousand_operations(engine, np.random.default_rng(seed))
        finally:
            engine.io.close()


def thousand_operations(engine, rng):
    running = []
    for turn in range(1000):
        action = rng.integers(8)
        if action < 3:
            order = [(A, B, C, D)[n] for n in rng.permutation(4)[: rng.integers(1, 4)]]
            running.append(engine.arrive(HEAD, *order, QUESTION, ratio=float(rng.choice([0.0, 0.2, 1.0]))))
            running[-1].scheduled = False
        elif action == 3 and running:
            engine.finish(running.pop(rng.integers(len(running))))
        elif action == 4 and turn % 4 == 0:
            engine.half._index.delete(lambda entry: entry.chunk_id == f"id-{100 * rng.integers(1, 5)}")
        elif action == 5 and turn % 3 == 0:
            files = list(engine.disk.folder.glob("*.safetensors"))
            if files:
                path = files[rng.integers(len(files))]
                flip_a_bit(path) if turn % 2 else path.unlink()
        else:
            engine.step(finish=action == 7)
        for request in running:
            if not request.scheduled and rng.random() < 0.5:
                request.scheduled = engine.schedule(request, int(rng.choice([0, 4, 16])))[0] is not None
        assert engine.half._index.check() == []
        assert engine.half._index.used_bytes <= 70 * engine.bytes_per_token
        assert engine.disk.directory.recount() <= 9000
    for request in running:
        engine.finish(request)
    settle(settle(engine))
    assert engine.half._in_flight == {}
    changes = engine.ask({"op": "changes"})
    assert changes["made"] == changes["decided"]
    assert all(entry.users == 0 and entry.ready for entry in engine.half._index)
    assert engine.half._index.used_bytes == sum(engine.tensors.values()) == engine.memory.nbytes
