"""What is deleted does not come back from requests that are under way, and other processes' files go with it."""

import pytest

HEAD = (1, 2, 3, 4)
STAND_IN = (51, 52, 53, 54, 55)
A, B, C = (tuple(range(start, start + 20)) for start in (100, 200, 300))
QUESTION = (7, 8, 9)
DELETIONS = [{}, {"chunk_ids": ["id-100", "id-200"]}, {"document_id": "a.md"}]


@pytest.fixture
def engine(make_fake_engine):
    return make_fake_engine(stand_in_token_ids=STAND_IN)


@pytest.fixture
def start(make_fake_engine, tmp_path):
    """`start(...)`: another process on the same folder."""
    engines = []

    def make(**options):
        engines.append(make_fake_engine(store_dir=tmp_path / "store", **options))
        engines[-1].step()
        return engines[-1]

    yield make
    for engine in engines:
        engine.io.close()


def arrive(engine, chunk, **options):
    """The request that stores a chunk."""
    pieces = (HEAD + STAND_IN, chunk, chunk[-1:])
    return engine.arrive(*pieces, prewarm=True, policy="none", ratio=0.0, **options)


def settle(engine):
    engine.step()
    engine.step()


def missing(engine, *names, namespace="tenant"):
    chunks = [[name, name, None] for name in names]
    return [names[number] for number in engine.ask({"op": "missing", "chunks": chunks}, namespace)["missing"]]


@pytest.mark.parametrize("deletion", DELETIONS)
def test_a_prewarm_that_waits_does_not_bring_a_deleted_chunk_back(engine, deletion):
    first, second = arrive(engine, A), arrive(engine, B)
    engine.schedule(first)
    assert engine.schedule(second) == (None, False), "it waits for the passages"
    assert engine.ask({"op": "delete", **deletion})["deleted"] == ["id-100"]
    assert engine.schedule(second)[1]
    engine.step()
    (line,) = engine.report(second).chunks
    assert (line.outcome, line.reason) == ("MISS", "not in the store: it was deleted while the request waited")
    assert missing(engine, "id-100", "id-200") == ["id-100", "id-200"]
    engine.finish(first)
    assert engine.check() == []


@pytest.mark.parametrize("deletion", [{"chunk_ids": ["id-100"]}, {"document_id": "b.md"}])
def test_what_a_deletion_does_not_name_is_stored_all_the_same(engine, deletion):
    first, second = arrive(engine, A), arrive(engine, B)
    engine.schedule(first)
    engine.ask({"op": "delete", **deletion})
    engine.schedule(second)
    engine.step()
    assert engine.report(second).chunks[0].reason.endswith("stored now")
    assert missing(engine, "id-200") == []


def test_another_tenants_deletion_does_not_matter(engine):
    request = arrive(engine, A)
    engine.ask({"op": "delete"}, namespace="other")
    engine.schedule(request)
    engine.step()
    assert engine.report(request).chunks[0].reason.endswith("stored now")


def test_a_deleted_document_does_not_own_what_a_waiting_request_finds(make_fake_engine):
    engine = make_fake_engine()
    engine.prewarm(A)
    engine.ask({"op": "missing", "chunks": [["id-100", "id-100", "b.md"]]})
    request = engine.arrive(HEAD, A, QUESTION)  # names a.md
    assert engine.ask({"op": "delete", "document_id": "a.md"})["deleted"] == []
    engine.schedule(request)
    engine.step()
    assert engine.report(request).chunks[0].outcome == "HIT"
    assert engine.ask({"op": "delete", "document_id": "b.md"})["deleted"] == ["id-100"]


def test_a_full_prefill_that_waits_leaves_no_variant_of_what_was_deleted(make_fake_engine):
    engine = make_fake_engine(keep_variants=2)
    request = engine.arrive(HEAD, A, B, QUESTION, policy="all", ratio=1.0)
    engine.ask({"op": "delete", "chunk_ids": ["id-100"]})
    engine.schedule(request)
    assert [span.start for span in engine.half.take_metadata().plans[0].plan.captures] == [0], "the head alone"


@pytest.mark.parametrize("deletion", DELETIONS)
def test_what_another_process_has_stored_since_is_deleted_too(start, deletion):
    engine, other = start(), start()
    other.prewarm(A)
    settle(other)
    assert engine.ask({"op": "delete", **deletion})["deleted"] == ["id-100"]
    settle(engine)
    assert [header.chunk_id for header in engine.disk.scan() if header.chunk_id] == []
    assert engine.serve(HEAD, A, QUESTION).chunks[0].outcome == "MISS"


def test_what_another_process_has_stored_since_is_pinned_and_read_ahead(start):
    engine, other = start(), start()
    other.prewarm(A)
    settle(other)
    assert engine.ask({"op": "pin", "chunk_ids": ["id-100"], "pinned": True})["pinned"] == ["id-100"]
    assert engine.ask({"op": "prefetch", "chunk_ids": ["id-100"]})["prefetched"] == ["id-100"]
    settle(engine)
    assert start().ask({"op": "stats"})["pinned"] == 1


def test_a_file_that_only_another_process_could_write_goes_with_the_entry(start):
    engine, other = start(), start()
    engine.prewarm(A)  # in memory; its file is ordered with the next step
    other.prewarm(A)
    settle(other)
    entry = next(entry for entry in engine.half._index if entry.chunk_id == "id-100")
    engine.half._index.left_disk(entry.key)  # as where its own file could not be written
    engine.half._index.changes.take()
    assert engine.ask({"op": "delete", "chunk_ids": ["id-100"]})["deleted"] == ["id-100"]
    settle(engine)
    assert [header.chunk_id for header in engine.disk.scan() if header.chunk_id] == []


def test_a_pin_set_before_the_file_is_written_outlives_the_process(start):
    engine = start()
    request = engine.arrive(HEAD, A, A[-1:], prewarm=True, policy="none", ratio=0.0)
    engine.schedule(request)
    assert engine.ask({"op": "pin", "chunk_ids": ["id-100"], "pinned": True})["pinned"] == ["id-100"]
    settle(engine)
    assert start().ask({"op": "stats"})["pinned"] == 1


def test_a_vanished_file_is_found_again_by_a_reader_once_it_is_there_again(start):
    writer = start()
    writer.prewarm(A)
    settle(writer)
    reader = start(read_only=True)
    path = next(writer.disk.path(header.key) for header in writer.disk.scan() if header.chunk_id)
    content = path.read_bytes()
    path.unlink()
    outcomes = [reader.serve(HEAD, B, A, QUESTION).chunks[1].outcome for _ in range(2)]
    assert outcomes == ["REFUSED", "MISS"]
    path.write_bytes(content)
    assert reader.serve(HEAD, B, A, QUESTION).chunks[1].outcome == "HIT"


def test_changes_are_counted_on_and_on(start):
    engine = start()
    engine.prewarm(A)
    engine.prewarm(B)
    settle(engine)
    before = engine.ask({"op": "changes"})
    assert before["decided"] == before["made"] >= 3, "head and two chunks"
    engine.ask({"op": "delete", "chunk_ids": ["id-100"]})
    settle(engine)
    assert engine.ask({"op": "changes"}) == {"decided": before["decided"] + 1, "made": before["made"] + 1}
