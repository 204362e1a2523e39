"""Random valid traffic under random faults, counted: `cachecraft bench soak`. A wrong answer must not happen."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from cachecraft_rag.answer import Answer
from cachecraft_rag.bench.faults import FAULTS, full_disk
from cachecraft_rag.bench.memory import child_processes, open_files, peak_bytes, resident_bytes
from cachecraft_rag.bench.soak_result import Sample, SoakResult
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.engine import ChunkEngine
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.report import Outcome
from cachecraft_rag.store.audit import audit, repair
from cachecraft_rag.store.directory import ENTRY_SUFFIX, StoreDirectory
from cachecraft_rag.verification.cases import passage
from cachecraft_rag.verification.compare import compare

_WORKERS = 3
_CHUNKS = 16
_SENTENCES = 6
_TENANTS = ("red", "blue")
_QUESTIONS = ("Who keeps bees?", "What does Cleo own?", "Where is the key?")
_SAMPLE_SECONDS = 10.0
# Two float32 runs of other batch shapes differ by so much in a log-probability; text may part where that decides.
_TOLERANCE = 5e-3
_REFERENCE = {"policy": "none", "recompute_ratio": 0.0, "max_tokens": 4, "logprobs": 5}


def bench_soak(model: str, *, minutes: float, fault_seconds: float = 4.0, dtype: str = "float32") -> SoakResult:
    """Memory holds half of the chunks and the disk three quarters, so that entries come and go through all tiers.

    `fault_seconds`: from one fault to the next, on average.
    """
    before = child_processes()
    with tempfile.TemporaryDirectory(prefix="cachecraft-soak-") as folder:
        store_dir = Path(folder) / "store"
        with ChunkEngine(
            model,
            dtype=dtype,
            store_dir=store_dir,
            cpu_store_gb=0.11,
            disk_store_gb=0.17,
            namespace_share=0.6,
            kv_cache_gb=0.25,
            max_model_len=2048,
            vllm_args={"max_logprobs": 20},
        ) as engine:
            pid = max(child_processes() - before, key=peak_bytes)
            result = SoakResult(Path(model).name, minutes)
            _Soak(engine, store_dir, pid, result, fault_seconds).run(minutes * 60.0)
        directory = StoreDirectory(store_dir)
        found = audit(directory)
        result.damaged = sum(fault.path is not None for fault in found.faults)
        repair(directory, found)
        result.left_after_repair = [str(fault) for fault in audit(directory).faults]
    return result


class _Soak:
    def __init__(
        self, engine: ChunkEngine, store_dir: Path, pid: int, result: SoakResult, fault_seconds: float
    ) -> None:
        self._engine = engine
        self._store_dir = store_dir
        self._pid = pid
        self._result = result
        self._fault_seconds = fault_seconds
        self._chunks = [passage(seed, _SENTENCES) for seed in range(_CHUNKS)]
        self._chunks = [Chunk(chunk.text, f"{number % 5}.md") for number, chunk in enumerate(self._chunks)]
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._references: dict[tuple[int, ...], Answer] = {}

    def run(self, seconds: float) -> None:
        self._make_references()
        started = time.monotonic()
        with ThreadPoolExecutor(_WORKERS + 2) as pool:
            for number in range(_WORKERS):
                pool.submit(self._guarded, self._traffic, random.Random(number))
            pool.submit(self._guarded, self._harm, random.Random(99))
            while (elapsed := time.monotonic() - started) < seconds:
                self._result.samples.append(Sample(elapsed, resident_bytes(self._pid), open_files(self._pid)))
                self._stop.wait(min(_SAMPLE_SECONDS, seconds - elapsed))
            self._stop.set()
        self._engine.generate(ChunkPrompt.from_parts(["The end."]), max_tokens=1)
        self._result.cache_usage = _cache_usage()
        self._result.books = self._engine.check()

    def _make_references(self) -> None:
        """Before any harm: what naive reuse of all these answers, which depends on every stored number."""
        rng = random.Random(1)
        for _ in range(6):
            order = tuple(rng.sample(range(_CHUNKS), 3))
            self._engine.prewarm([self._chunks[n] for n in order], namespace="reference", progress=False)
            self._references[order] = self._engine.generate(self._prompt(order), namespace="reference", **_REFERENCE)

    def _prompt(self, order: Sequence[int], question: str = _QUESTIONS[0]) -> ChunkPrompt:
        return ChunkPrompt.chat([self._chunks[number] for number in order], question)

    def _guarded(self, loop: Callable[[random.Random], None], rng: random.Random) -> None:
        while not self._stop.is_set():
            try:
                loop(rng)
            except Exception as error:  # counted and shown: nothing here may fail
                self._result.errors.append(f"{loop.__name__}: {error!r}")

    def _traffic(self, rng: random.Random) -> None:
        actions: dict[Callable[[random.Random], None], int] = {
            self._ask: 50,
            self._compare_exact: 8,
            self._compare_reuse: 20,
            self._abort: 8,
            self._prewarm: 10,
            self._delete: 6,
            self._pin: 4,
        }
        (action,) = rng.choices(list(actions), list(actions.values()))
        action(rng)
        with self._lock:
            self._result.actions[action.__name__.removeprefix("_").replace("_", " ")] += 1

    def _ask(self, rng: random.Random) -> None:
        order = rng.sample(range(_CHUNKS), rng.randint(1, 5))
        self._note(
            self._engine.generate(
                self._prompt(order, rng.choice(_QUESTIONS)),
                namespace=rng.choice(_TENANTS),
                policy=rng.choice(["first", "random", "question", "deviation", "blend"]),
                recompute_ratio=rng.choice([0.0, 0.15, 0.5]),
                max_tokens=rng.randint(1, 8),
            )
        )

    def _compare_exact(self, rng: random.Random) -> None:
        prompt = self._prompt(rng.sample(range(_CHUNKS), rng.randint(1, 4)), rng.choice(_QUESTIONS))
        plain = self._engine.generate(prompt, reuse=False, fresh=True, max_tokens=4, logprobs=5)
        ours = self._engine.generate(
            prompt, recompute_ratio=1.0, namespace=rng.choice(_TENANTS), max_tokens=4, logprobs=5
        )
        self._hold_against("plain", plain, ours)

    def _compare_reuse(self, rng: random.Random) -> None:
        """Only where all chunks were reused: otherwise some are better than in the reference."""
        order = rng.choice(list(self._references))
        answer = self._engine.generate(self._prompt(order), namespace=rng.choice(_TENANTS), **_REFERENCE)
        self._note(answer)
        if answer.report is not None and answer.report.hits == len(order) and not answer.report.prefix_cache_tokens:
            self._hold_against("reuse", self._references[order], answer)

    def _abort(self, rng: random.Random) -> None:
        order = rng.sample(range(_CHUNKS), rng.randint(1, 5))
        stream = self._engine.stream(self._prompt(order), namespace=rng.choice(_TENANTS), max_tokens=200)
        if rng.random() < 0.7:
            next(iter(stream))
        stream.close()  # type: ignore[attr-defined]

    def _prewarm(self, rng: random.Random) -> None:
        chunks = rng.sample(self._chunks, rng.randint(1, 6))
        self._engine.prewarm(chunks, namespace=rng.choice(_TENANTS), progress=False)

    def _delete(self, rng: random.Random) -> None:
        tenant = rng.choice(_TENANTS)
        if rng.random() < 0.5:
            self._engine.delete(document_id=f"{rng.randrange(5)}.md", namespace=tenant)
        else:
            self._engine.delete(chunk_ids=[rng.choice(self._chunks).id], namespace=tenant)

    def _pin(self, rng: random.Random) -> None:
        tenant = rng.choice(_TENANTS)
        chunk = rng.choice(self._chunks)
        self._engine.pin([chunk.id], namespace=tenant)
        self._engine.pin([chunk.id], pinned=False, namespace=tenant)

    def _harm(self, rng: random.Random) -> None:
        self._stop.wait(rng.expovariate(1.0 / self._fault_seconds))
        if self._stop.is_set():
            return
        if rng.random() < 0.1:
            with full_disk(self._pid):
                self._stop.wait(2.0)
            self._result.faults["disk full"] += 1
            return
        files = sorted(self._store_dir.glob(f"*/*{ENTRY_SUFFIX}"))
        if files:
            name = rng.choice(list(FAULTS))
            with suppress(FileNotFoundError, OSError):  # the engine was faster
                FAULTS[name](rng.choice(files))
                self._result.faults[name] += 1

    def _note(self, answer: Answer) -> None:
        if answer.report is None:
            return
        with self._lock:
            for chunk in answer.report.chunks:
                self._result.outcomes[chunk.outcome.value] += 1
                if chunk.outcome is Outcome.REFUSED:
                    self._result.reasons[chunk.reason.partition(": it")[0]] += 1

    def _hold_against(self, kind: str, reference: Answer, answer: Answer) -> None:
        difference = compare(reference, answer)
        parted = difference.parts_at is not None and difference.margin > _TOLERANCE
        with self._lock:
            self._result.compared[kind] += 1
            if parted or difference.logprob > _TOLERANCE:
                self._result.wrong.append(f"{kind}: {answer.text!r} instead of {reference.text!r}, {difference}")


def _cache_usage() -> float:
    """Share of vLLM's KV blocks in use at its last step."""
    from prometheus_client import REGISTRY

    samples = [s for metric in REGISTRY.collect() for s in metric.samples if s.name == "vllm:kv_cache_usage_perc"]
    return max((sample.value for sample in samples), default=0.0)
