"""LangChain's own suites, on a real model."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from langchain_cachecraft import ChatCachecraft, ChunkPromptTemplate, ChunkRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_tests.integration_tests import ChatModelIntegrationTests, RetrieversIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from cachecraft_rag import ChunkEngine
from cachecraft_rag.verification.cases import passage


class _Real:
    engine: ClassVar[ChunkEngine]

    @pytest.fixture(autouse=True)
    def _set_engine(self, engine: ChunkEngine) -> None:
        type(self).engine = engine

    @property
    def chat_model_class(self) -> type[ChatCachecraft]:
        return ChatCachecraft

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"engine": self.engine}

    @property
    def supports_model_override(self) -> bool:
        return False  # an engine runs one model

    @property
    def supports_json_mode(self) -> bool:
        return True


class TestUnit(_Real, ChatModelUnitTests):
    pass


class TestIntegration(_Real, ChatModelIntegrationTests):
    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:  # type: ignore[override]
        return {key: ["cache_read_input", "cache_creation_input"] for key in ("invoke", "stream")}

    def invoke_with_cache_creation_input(self, *, stream: bool = False) -> AIMessage:
        self.engine.delete(everything=True)
        message = self._ask(stream)
        assert message.usage_metadata is not None
        assert message.usage_metadata["input_token_details"]["cache_creation"] > 0
        return message

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        self._ask(stream)
        message = self._ask(stream)
        assert message.usage_metadata is not None
        assert message.usage_metadata["input_token_details"]["cache_read"] > 0
        return message

    def _ask(self, stream: bool) -> AIMessage:
        llm = ChatCachecraft(engine=self.engine, max_tokens=4)
        context = [Document(passage(seed, 3).text) for seed in range(2)]
        prompt = ChunkPromptTemplate.from_template("{context}\n\nWho keeps bees?").invoke({"context": context})
        if not stream:
            return llm.invoke(prompt)
        pieces = list(llm.stream(prompt))
        return sum(pieces[1:], start=pieces[0])


class TestRetriever(_Real, RetrieversIntegrationTests):
    @property
    def retriever_constructor(self) -> type[ChunkRetriever]:
        return ChunkRetriever

    @property
    def retriever_constructor_params(self) -> dict[str, Any]:
        store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
        store.add_texts([f"The {number}th text of this test." for number in range(5)])
        return {"retriever": store.as_retriever(), "llm": ChatCachecraft(engine=self.engine)}

    @property
    def retriever_query_example(self) -> str:
        return "texts"


@pytest.mark.parametrize("suite", [_Real, TestUnit, TestIntegration, TestRetriever])
def test_no_standard_test_is_overridden(suite: type) -> None:
    assert not [name for name in vars(suite) if name.startswith("test_")]
