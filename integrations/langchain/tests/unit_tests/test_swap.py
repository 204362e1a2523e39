"""The one-line swap: what another chat model gets from the same chain."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_cachecraft import ChatCachecraft, ChunkPromptTemplate
from langchain_classic.chains import create_retrieval_chain
from langchain_core.documents import Document
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough

from cachecraft_rag.testing import FakeEngine

MESSAGES = [("system", "Answer from this:\n{context}"), ("human", "{question}")]


class Recorder(BaseChatModel):
    """Any other chat model."""

    seen: list[list[tuple[str, bytes]]]

    @property
    def _llm_type(self) -> str:
        return "recorder"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.seen.append([(message.type, message.text.encode()) for message in messages])
        return ChatResult(generations=[ChatGeneration(message=AIMessage("seen"))])


def chain(documents: list[Document], prompt: ChatPromptTemplate, llm: BaseChatModel) -> Runnable[str, str]:
    return (
        {"context": RunnableLambda(lambda question: documents), "question": RunnablePassthrough()}
        | prompt
        | llm
        | StrOutputParser()
    )


def flat(documents: list[Document]) -> Runnable[Any, Any]:
    """What chains do before a template that takes strings only."""
    join = RunnableLambda(lambda values: {**values, "context": "\n\n".join(d.page_content for d in documents)})
    return join | ChatPromptTemplate.from_messages(MESSAGES)


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1]])
def test_other_models_get_the_same_bytes(documents: list[Document], order: list[int]) -> None:
    recorder = Recorder(seen=[])
    chosen = [documents[number] for number in order]
    chain(chosen, ChunkPromptTemplate.from_messages(MESSAGES), recorder).invoke("Who?")
    (flat(chosen) | recorder).invoke({"question": "Who?"})
    assert recorder.seen[0] == recorder.seen[1]
    assert documents[order[0]].page_content.encode() in recorder.seen[0][0][1]


@pytest.mark.parametrize("how", ["invoke", "stream", "batch", "ainvoke", "astream"])
async def test_ours_gets_chunks(engine: FakeEngine, documents: list[Document], how: str) -> None:
    ours = chain(documents, ChunkPromptTemplate.from_messages(MESSAGES), ChatCachecraft(engine=engine))
    answer = {
        "invoke": lambda: ours.invoke("Who?"),
        "stream": lambda: "".join(ours.stream("Who?")),
        "batch": lambda: ours.batch(["Who?"])[0],
    }
    if how == "ainvoke":
        text = await ours.ainvoke("Who?")
    elif how == "astream":
        text = "".join([piece async for piece in ours.astream("Who?")])
    else:
        text = answer[how]()
    assert text == "You said: Who?"
    [request] = engine.requests
    assert [chunk.text for chunk in request.prompt.chunks] == [document.page_content for document in documents]
    assert request.prompt.messages[0].role == "system"


def test_create_retrieval_chain(engine: FakeEngine, documents: list[Document]) -> None:
    prompt = ChunkPromptTemplate.from_messages([("human", "{context}\n\n{input}")])
    found = RunnableLambda(lambda values: documents)
    ours = create_retrieval_chain(found, prompt | ChatCachecraft(engine=engine) | StrOutputParser())
    result = ours.invoke({"input": "Who?"})
    assert result["answer"] == "You said: Who?"
    assert result["context"] == documents
    assert len(engine.requests[0].prompt.chunks) == 3
