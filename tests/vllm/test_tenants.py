"""Tenants in one engine: what one does tells another nothing, and takes nothing from it."""

import pytest

HEAD = (1, 2, 3, 4)
A, B, C, D = (tuple(range(start, start + 20)) for start in (100, 200, 300, 400))
QUESTION = (7, 8, 9)


def outcomes(report):
    return [chunk.outcome.value for chunk in report.chunks]


def without_id(report):
    fields = report.to_dict()
    return {name: value for name, value in fields.items() if name not in ("request_id", "timings")}


@pytest.fixture
def tiers(make_fake_engine, tmp_path):
    """An engine of which a tenant may take half, with a disk."""
    engine = make_fake_engine(
        store_tokens=2 * (4 + 2 * 20), store_dir=tmp_path / "store", disk_bytes=20_000, namespace_share=0.5
    )
    yield engine
    engine.io.close()


@pytest.mark.parametrize("store_dir", [False, True])
def test_a_report_is_the_same_whatever_others_have(make_fake_engine, tmp_path, store_dir):
    reports = []
    for number in range(2):
        engine = make_fake_engine(store_dir=tmp_path / str(number) if store_dir else None)
        if number:
            engine.prewarm(A, B, C, namespace="victim")
            engine.serve(HEAD, B, A, QUESTION, namespace="victim")
        engine.prewarm(C, namespace="attacker")
        reports.append([without_id(engine.serve(HEAD, A, B, C, QUESTION, namespace="attacker")) for _ in range(2)])
        if engine.io is not None:
            engine.io.close()
    assert reports[0] == reports[1]


@pytest.mark.parametrize(
    "control", [{"op": "delete"}, {"op": "delete", "document_id": "a.md"}, {"op": "pin", "pinned": True}]
)
def test_nothing_of_another_can_be_deleted_or_pinned_or_seen(engine, control):
    engine.prewarm(A, B, namespace="victim")
    answer = engine.ask(control, namespace="attacker")
    assert list(answer.values()) == [[]]
    chunks = [["id-100", "id-100", None], ["id-200", "id-200", None]]
    assert engine.ask({"op": "missing", "chunks": chunks}, namespace="attacker")["missing"] == [0, 1]
    assert outcomes(engine.serve(HEAD, B, A, QUESTION, namespace="victim")) == ["HIT", "HIT"]


def test_own_stats_do_not_move_when_others_store(tiers):
    tiers.prewarm(A, namespace="attacker")
    before = tiers.ask({"op": "stats", "own": True}, namespace="attacker")
    assert "evicted" not in before
    assert "store_bytes" not in before
    tiers.prewarm(A, B, C, D, namespace="victim")
    assert tiers.ask({"op": "stats", "own": True}, namespace="attacker") == before


def test_a_flood_evicts_nothing_of_others_in_memory_or_on_disk(tiers):
    tiers.prewarm(A, B, namespace="victim")
    tiers.step()
    for number in range(1000, 3000, 100):
        tiers.prewarm(tuple(range(number, number + 20)), namespace="flood")
        tiers.step()
    tiers.step()
    own = tiers.ask({"op": "stats", "own": True}, namespace="victim")
    assert (own["chunks_in_memory"], own["chunks_on_disk"]) == (2, 2)
    flood = tiers.ask({"op": "stats", "own": True}, namespace="flood")
    assert flood["used_bytes"] <= flood["capacity_bytes"]
    headers = list(tiers.disk.scan())
    assert {h.chunk_id for h in headers if h.namespace == "victim"} == {None, "id-100", "id-200"}
    of_flood = sum(tiers.disk.path(h.key).stat().st_size for h in headers if h.namespace == "flood")
    assert 0 < of_flood <= 10_000
    assert outcomes(tiers.serve(HEAD, B, A, QUESTION, namespace="victim")) == ["HIT", "HIT"]
    assert tiers.check() == []


def test_computed_tokens_come_in_buckets(make_fake_engine):
    engine = make_fake_engine(recompute_bucket=16)
    engine.prewarm(A, B, C)
    for pieces in ((A, B), (B, A, C), (B,), (C, D, A)):
        for ratio in (0.0, 0.1, 0.3, 0.7):
            request = engine.arrive(HEAD, *pieces, QUESTION, ratio=ratio)
            engine.schedule(request)
            (message,) = engine.step().plans
            size = message.plan.compute.size
            assert size % 16 == 0 or size == message.plan.end
            engine.finish(request)
            engine.step()
    assert engine.check() == []
