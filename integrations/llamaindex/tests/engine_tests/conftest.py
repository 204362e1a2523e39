"""One real engine for all tests. Its paged cache is so small that leaked blocks are noticed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from llama_index.core import Settings
from llama_index.core.callbacks import CallbackManager
from llama_index.core.schema import NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.llms.cachecraft import Cachecraft

from cachecraft_rag import ChunkEngine, ChunkPrompt
from cachecraft_rag.verification.cases import passage

MODEL = os.environ.get("CACHECRAFT_TEST_MODEL")
BLOCK, BLOCKS = 128, 18  # of vLLM's paged cache on a CPU
BYTES_PER_BLOCK = 2 * 30 * 3 * 64 * 4 * BLOCK  # SmolLM2-135M in float32
MAX_MODEL_LEN = (BLOCKS - 2) * BLOCK


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "/engine_tests/" in str(item.path) and not MODEL:
            item.add_marker(pytest.mark.skip(reason="set CACHECRAFT_TEST_MODEL to a small model's folder"))


@pytest.fixture(scope="session")
def engine() -> Iterator[ChunkEngine]:
    """Started by an LLM, as most are."""
    options = {
        "dtype": "float32",
        "kv_cache_gb": (BLOCKS * BYTES_PER_BLOCK + 1000) / (1 << 30),
        "cpu_store_gb": 1.5,
        "max_model_len": MAX_MODEL_LEN,
    }
    with Cachecraft(MODEL or "", engine_options=options) as owner:
        assert owner.metadata.context_window == MAX_MODEL_LEN
        assert owner.complete("Hello").text
        engine = owner.engine
        assert isinstance(engine, ChunkEngine)
        yield engine
    with pytest.raises(RuntimeError, match="closed"):
        owner.complete("Hello")


@pytest.fixture
def llm(engine: ChunkEngine) -> Cachecraft:
    return Cachecraft(engine=engine, max_tokens=8)


@pytest.fixture
def all_blocks_are_free(engine: ChunkEngine) -> Iterator[None]:
    """After the test a plain prompt that needs nearly all blocks is answered: it would hang where any leaked."""
    yield
    prompt = ChunkPrompt.from_parts(["x" + " a" * (MAX_MODEL_LEN - 10)])
    answer = engine.generate(prompt, reuse=False, fresh=True, max_tokens=2)
    assert len(answer.token_ids) == 2
    assert engine.check() == []


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Callable[[int], list[TextNode]]:
    """`nodes(n)`: n that no other test uses, of some 90 tokens each; of one document each."""
    seed = sum(request.node.nodeid.encode()) * 10

    def make(count: int) -> list[TextNode]:
        made = []
        for number in range(count):
            document = f"{request.node.name}-{number}"
            node = TextNode(text=passage(seed + number, 3).text, id_=f"node-{document}")
            node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=document)
            made.append(node)
        return made

    return make


@pytest.fixture(autouse=True)
def _no_default_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", None)
    monkeypatch.setattr(Settings, "_embed_model", None)
    monkeypatch.setattr(Settings, "_callback_manager", CallbackManager())
