"""Two ranks with files of their own: they must run the same slices in the same steps, or their collectives hang."""

import random
import time

import pytest

HEAD = (1, 2, 3, 4)
CHUNKS = [tuple(range(100 * n, 100 * n + 20)) for n in range(1, 9)]
QUESTION = (7, 8, 9)


class TwoRanks:
    """A scheduler half and two worker halves. Each rank's reads from disk take up to `delay` seconds."""

    def __init__(self, engine, make_worker, delay=0.0, seed=0):
        self.engine = engine
        self.random = random.Random(seed)
        self.workers = [make_worker(disk, rank=rank, ranks=2) for rank, disk in enumerate(engine.disks)]
        for disk in engine.disks:
            if disk is not None:
                self.slow_down(disk, delay)

    def slow_down(self, disk, delay):
        read = disk.read
        disk.read = lambda *given, **options: time.sleep(self.random.uniform(0, delay)) or read(*given, **options)

    def step(self):
        metadata = self.engine.half.take_metadata()
        reports = []
        for worker in self.workers:
            worker.half.step(metadata)
            worker.half.take_finished()
            reports.append(worker.half.take_report())
        one, other = self.workers
        assert one.forward.slices == other.forward.slices, "the ranks ran different slices"
        assert list(one.half._queue) == list(other.half._queue)
        said = [report for report in reports if report is not None]
        if said:
            self.engine.half.on_worker_report(said[0] if len(said) == 1 else said[0].aggregate(said[1]))

    def serve(self, *pieces, **options):
        """One request to its end; every position must hold what was stored or computed of its token."""
        request = self.engine.arrive(HEAD, *pieces, **options)
        while self.engine.schedule(request)[0] is None:
            self.step()
        for _ in range(2000):
            self.step()
            if not self.engine.half._in_flight:
                break
            time.sleep(0.0005)
        assert not self.engine.half._in_flight, "it never ended"
        ids = request.prompt_token_ids[:-1]
        if not options.get("prewarm"):
            for worker in self.workers:
                assert worker.cached(0, range(len(ids))) == [float(id_) for id_ in ids]
        report = self.engine.report(request)
        self.step()
        return report

    def prewarm(self, *chunks):
        for chunk in chunks:
            self.serve(chunk, chunk[-1:], prewarm=True, policy="none", ratio=0.0)
        self.settle()

    def settle(self):
        while self.engine.half._disk.pending:
            self.step()
            time.sleep(0.001)
        self.step()

    def check(self):
        """The index's books, and that memory is the same on both ranks."""
        held = [{handle: kv.tokens for handle, kv in worker.store._entries.items()} for worker in self.workers]
        assert held[0] == held[1]
        return self.engine.half._index.check()

    def files(self):
        """Keys on disk, by rank."""
        return [{path.name for path in disk.folder.glob("*.safetensors")} for disk in self.engine.disks]

    def close(self):
        for worker in self.workers:
            worker.half.close()


@pytest.fixture
def start(make_fake_engine, make_worker, tmp_path):
    """`start(delay=0.0, seed=0, **options)`: over the same folder each time."""
    started = []

    def start_it(delay=0.0, seed=0, **options):
        engine = make_fake_engine(store_dir=tmp_path / "store", ranks=2, **options)
        started.append(TwoRanks(engine, make_worker, delay, seed))
        return started[-1]

    yield start_it
    for ranks in started:
        ranks.close()


def test_every_rank_has_its_own_files_and_a_later_process_finds_them(start):
    first = start()
    first.prewarm(*CHUNKS[:3])
    one, other = first.files()
    assert one == other
    assert len(one) == 4  # the head is one of them
    assert first.engine.disks[0].folder != first.engine.disks[1].folder
    first.close()
    later = start(delay=0.005)
    report = later.serve(*CHUNKS[:3], QUESTION)
    assert report.hits == 3
    assert later.check() == []


def test_without_a_folder_ranks_keep_what_they_have_in_memory(make_fake_engine, make_worker):
    ranks = TwoRanks(make_fake_engine(ranks=2), make_worker)
    ranks.prewarm(*CHUNKS[:3])
    assert ranks.serve(*CHUNKS[:3], QUESTION).hits == 3
    assert ranks.check() == []


def test_what_one_rank_lacks_is_a_miss(start):
    first = start()
    first.prewarm(*CHUNKS[:3])
    first.close()
    one, other = first.engine.disks
    gone = [header.key for header in one.scan() if header.chunk_id == "id-100"]
    other.path(gone[0]).unlink()
    later = start()
    report = later.serve(*CHUNKS[:3], QUESTION)
    assert [chunk.outcome.value for chunk in report.chunks] == ["MISS", "HIT", "HIT"]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_cannot_read_is_computed_on_both_and_goes(start, rank):
    first = start()
    first.prewarm(*CHUNKS[:3])
    first.close()
    later = start(delay=0.003)
    torn = next(header.key for header in later.engine.disks[rank].scan() if header.chunk_id == "id-200")
    path = later.engine.disks[rank].path(torn)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    report = later.serve(*CHUNKS[:3], QUESTION)
    assert [chunk.outcome.value for chunk in report.chunks] == ["HIT", "REFUSED", "HIT"]
    assert "damaged" in report.chunks[1].reason
    later.settle()
    assert not any(disk.path(torn).exists() for disk in later.engine.disks)
    assert later.check() == []


def test_what_one_rank_cannot_write_stays_in_memory_and_leaves_no_file_of_the_other(start):
    ranks = start()
    other = ranks.engine.disks[1]

    def refuse(*_):
        raise OSError(28, "No space left on device")

    other.write = refuse
    ranks.prewarm(*CHUNKS[:2])
    assert ranks.files() == [set(), set()]
    report = ranks.serve(*CHUNKS[:2], QUESTION)
    assert report.hits == 2
    assert ranks.check() == []


def test_a_plan_cancelled_while_one_rank_still_reads(start):
    first = start()
    first.prewarm(*CHUNKS[:2])
    first.close()
    later = start(delay=0.02)
    request = later.engine.arrive(HEAD, *CHUNKS[:2], QUESTION)
    later.engine.schedule(request)
    later.step()
    later.engine.finish(request)
    for _ in range(60):
        later.step()
        time.sleep(0.001)
    assert not later.engine.half._disk.is_reading
    assert later.serve(*CHUNKS[:2], QUESTION).hits == 2
    assert later.check() == []


@pytest.mark.parametrize("seed", range(6))
def test_random_requests_files_that_vanish_and_little_room(start, seed):
    """Memory for five chunks, disk for about six of both ranks."""
    dice = random.Random(seed)
    ranks = start(delay=0.003, seed=seed, store_tokens=110, disk_bytes=40_000)
    for _ in range(40):
        what = dice.random()
        some = dice.sample(CHUNKS, dice.randint(1, 3))
        if what < 0.3:
            ranks.prewarm(*some)
        elif what < 0.4:
            disk = dice.choice(ranks.engine.disks)
            files = sorted(disk.folder.glob("*.safetensors"))
            if files:
                dice.choice(files).unlink()
        elif what < 0.5:
            ranks.engine.half._index.delete(lambda entry, some=some: entry.chunk_id == f"id-{some[0][0]}")
            ranks.settle()
        else:
            ranks.serve(*some, QUESTION)
        assert ranks.check() == []
        assert ranks.engine.disk.directory.counted_bytes() <= 40_000
    ranks.settle()
    indexed = {f"{entry.key}.safetensors" for entry in ranks.engine.half._index if entry.on_disk}
    one, other = ranks.files()
    assert (one | other) <= indexed, "a file that no entry stands for"
