"""One engine for all engine tests; a test that needs other options starts a short one of its own."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from cachecraft_rag import Chunk, ChunkEngine, ChunkPrompt
from cachecraft_rag.answer import Answer
from cachecraft_rag.verification.cases import passage
from cachecraft_rag.verification.compare import compare

MODEL = os.environ.get("CACHECRAFT_TEST_MODEL")
BLOCK = 128  # of vLLM's paged cache on a CPU
TOLERANCE = 1e-3  # of log-probabilities, between two float32 runs of different batch shape
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "kv_cache_gb": 0.5,
    "cpu_store_gb": 0.5,
    "max_model_len": 2048,
    "vllm_args": {"max_logprobs": 500},
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/engine/" in str(item.path):
            item.add_marker(pytest.mark.engine)
            if not MODEL:
                item.add_marker(pytest.mark.skip(reason="set CACHECRAFT_TEST_MODEL to a small model's folder"))


@contextmanager
def started(**options: Any) -> Iterator[ChunkEngine]:
    assert MODEL is not None
    with ChunkEngine(MODEL, **{**OPTIONS, **options}) as engine:
        yield engine


@pytest.fixture(scope="session")
def engine() -> Iterator[ChunkEngine]:
    with started() as shared:
        yield shared


@pytest.fixture(scope="session")
def sliced_engine() -> Iterator[ChunkEngine]:
    """Without vLLM's prefix cache, and with batches so small that most prompts take several slices."""
    with started(max_num_batched_tokens=256, enable_prefix_caching=False) as other:
        yield other


@pytest.fixture(scope="session")
def alone_engine() -> Iterator[ChunkEngine]:
    """Its chunks are computed behind the head alone, so that one which follows it is reused exactly; small batches."""
    with started(max_num_batched_tokens=256, stand_in=()) as other:
        yield other


@pytest.fixture(scope="session")
def start_engine() -> Callable[..., Any]:
    """A context manager for an engine of its own: `with start_engine(max_num_batched_tokens=256) as engine:`."""
    return started


@pytest.fixture
def passages(request: pytest.FixtureRequest) -> Callable[..., list[Chunk]]:
    """`passages(n)`: n chunks that no other test uses, each of `sentences` sentences (about 28 tokens each)."""
    seed = zlib.crc32(request.node.nodeid.encode())

    def make(count: int, sentences: int = 3) -> list[Chunk]:
        nonlocal seed
        seed += count
        return [passage(seed - number, sentences) for number in range(count)]

    return make


@pytest.fixture(scope="session")
def assert_exact() -> Callable[..., Answer]:
    """Compare an answer of ours (made here at ratio 1.0 if not given) with plain vLLM's; returns ours."""

    def check(engine: ChunkEngine, prompt: ChunkPrompt, ours: Answer | None = None, **options: Any) -> Answer:
        sampling = {"max_tokens": 4, "logprobs": 5}
        plain = engine.generate(prompt, reuse=False, fresh=True, **sampling)
        if ours is None:
            ours = engine.generate(prompt, **{"recompute_ratio": 1.0, **sampling, **options})
        difference = compare(plain, ours)
        assert difference.parts_at is None, f"{ours.text!r} instead of {plain.text!r}"
        assert difference.logprob < TOLERANCE
        return ours

    return check


@pytest.fixture(scope="session")
def outcomes() -> Callable[[Answer], list[str]]:
    def of(answer: Answer) -> list[str]:
        assert answer.report is not None
        return [chunk.outcome.value for chunk in answer.report.chunks]

    return of


@pytest.fixture(scope="session")
def prompt_of_length() -> Callable[..., ChunkPrompt]:
    """A free-form prompt of exactly `tokens` tokens that ends with `last`, with a filler of single tokens in front."""

    def make(engine: ChunkEngine, tokens: int, before: Sequence[Chunk], last: Chunk) -> ChunkPrompt:
        rest = engine.tokenizer.encode(ChunkPrompt.from_parts(["x", *before, last])).token_ids
        filler = "x" + " a" * (tokens - len(rest))
        prompt = ChunkPrompt.from_parts([filler, *before, last])
        assert len(engine.tokenizer.encode(prompt).token_ids) == tokens
        return prompt

    return make
