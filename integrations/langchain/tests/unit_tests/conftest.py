"""The fake engine, and documents for it."""

from __future__ import annotations

import pytest
from langchain_cachecraft import ChatCachecraft
from langchain_core.documents import Document

from cachecraft_rag.testing import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def llm(engine: FakeEngine) -> ChatCachecraft:
    return ChatCachecraft(engine=engine)


@pytest.fixture
def documents() -> list[Document]:
    return [
        Document("Ada keeps seven bees in the old tower.", metadata={"source": "bees"}),
        Document("Hugo lives at the harbour with a parrot.", metadata={"source": "harbour"}),
        Document("The ferry leaves at nine, but not on Mondays.", metadata={"source": "ferry"}),
    ]
