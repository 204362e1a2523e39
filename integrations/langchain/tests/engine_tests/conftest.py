"""One real engine for all tests. Its paged cache is so small that leaked blocks are noticed."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_cachecraft import ChatCachecraft
from langchain_core.documents import Document

from cachecraft_rag import ChunkEngine, ChunkPrompt
from cachecraft_rag.errors import EngineClosed
from cachecraft_rag.verification.cases import passage

MODEL = os.environ.get("CACHECRAFT_TEST_MODEL")
BLOCK, BLOCKS = 128, 18  # of vLLM's paged cache on a CPU
BYTES_PER_BLOCK = 2 * 30 * 3 * 64 * 4 * BLOCK  # SmolLM2-135M in float32
MAX_MODEL_LEN = (BLOCKS - 2) * BLOCK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/engine_tests/" not in str(item.path):
            continue
        if not MODEL:
            item.add_marker(pytest.mark.skip(reason="set CACHECRAFT_TEST_MODEL to a small model's folder"))
        elif "test_agent_loop" in item.name:
            item.add_marker(pytest.mark.skip(reason="a model of 135M parameters calls no tool of itself"))


@pytest.fixture(scope="session")
def engine() -> Iterator[ChunkEngine]:
    """Made as a chat model makes its own."""
    options = {
        "dtype": "float32",
        "kv_cache_gb": (BLOCKS * BYTES_PER_BLOCK + 1000) / (1 << 30),
        "cpu_store_gb": 0.5,
        "max_model_len": MAX_MODEL_LEN,
    }
    with ChatCachecraft(model=MODEL, engine_options=options) as owner:
        assert owner.started_engine is None
        assert owner.invoke("Hello").text
        assert isinstance(owner.started_engine, ChunkEngine)
        yield owner.started_engine
    with pytest.raises(EngineClosed):
        owner.invoke("Hello")


@pytest.fixture
def llm(engine: ChunkEngine) -> ChatCachecraft:
    return ChatCachecraft(engine=engine, max_tokens=8)


@pytest.fixture
def all_blocks_are_free(engine: ChunkEngine) -> Callable[[], None]:
    """A plain prompt that needs nearly all blocks there are is answered: it would wait where any leaked."""

    def check() -> None:
        prompt = ChunkPrompt.from_parts(["x" + " a" * (MAX_MODEL_LEN - 10)])
        answer = engine.submit(prompt, reuse=False, fresh=True, max_tokens=2).result(timeout=120)
        assert len(answer.token_ids) == 2
        assert engine.check() == []

    return check


@pytest.fixture
def aborted(engine: ChunkEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests that vLLM was told to abort, once `all_blocks_are_free` has been asked."""
    ids: list[str] = []
    llm: Any = engine._client.requests._llm
    abort = llm.abort

    async def counted(request_id: str, **options: Any) -> None:
        ids.append(request_id)
        await abort(request_id, **options)

    monkeypatch.setattr(llm, "abort", counted)
    return ids


@pytest.fixture
def documents(request: pytest.FixtureRequest) -> list[Document]:
    """Four that no other test uses, of some 90 tokens each."""
    seed = zlib.crc32(request.node.nodeid.encode())
    return [
        Document(passage(seed + number, 3).text, metadata={"source": f"{request.node.name}-{number}"})
        for number in range(4)
    ]
