"""Templates: documents become blocks, the rest stays as LangChain's own templates have it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from langchain_cachecraft import ChunkPromptTemplate
from langchain_core.documents import Document
from langchain_core.load import dumpd, load
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import (
    ChatPromptTemplate,
    HumanMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)

from cachecraft_rag import chunk_id
from cachecraft_rag.errors import InvalidInput

MESSAGES = [
    ("system", "You know {topic}."),
    ("placeholder", "{history}"),
    ("human", "Read:\n{context}\nQ: {question}"),
]
VALUES = {"topic": "bees", "question": "Who?"}


def joined(documents: list[Document]) -> str:
    return "\n\n".join(document.page_content for document in documents)


def test_documents_are_blocks_with_ids(documents: list[Document]) -> None:
    *_, message = ChunkPromptTemplate.from_messages(MESSAGES).format_messages(context=documents[:2], **VALUES)
    first, second = documents[:2]
    assert message.content == [
        {"type": "text", "text": "Read:\n"},
        {
            "type": "text",
            "text": first.page_content,
            "id": chunk_id(first.page_content),
            "extras": {"document_id": "bees"},
        },
        {"type": "text", "text": "\n\n"},
        {
            "type": "text",
            "text": second.page_content,
            "id": chunk_id(second.page_content),
            "extras": {"document_id": "harbour"},
        },
        {"type": "text", "text": "\nQ: Who?"},
    ]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0], [1], [], [0, 0]])
async def test_the_text_is_that_of_a_flat_template(documents: list[Document], order: list[int]) -> None:
    chosen = [documents[number] for number in order]
    values = {**VALUES, "history": [HumanMessage("h"), AIMessage("a")]}
    flat = ChatPromptTemplate.from_messages(MESSAGES).format_messages(context=joined(chosen), **values)
    ours = ChunkPromptTemplate.from_messages(MESSAGES)
    for made in (
        ours.format_messages(context=chosen, **values),
        await ours.aformat_messages(context=chosen, **values),
        ours.invoke({"context": chosen, **values}).to_messages(),
        (await ours.ainvoke({"context": tuple(chosen), **values})).to_messages(),
        ours.partial(context=chosen).format_messages(**values),
        ours.partial(context=lambda: chosen).format_messages(**values),
    ):
        assert [(type(message), message.text) for message in made] == [(type(one), one.text) for one in flat]


def test_without_documents_nothing_is_different() -> None:
    values = {**VALUES, "context": "plain", "history": []}
    assert ChunkPromptTemplate.from_messages(MESSAGES).invoke(values) == ChatPromptTemplate.from_messages(
        MESSAGES
    ).invoke(values)


def test_one_document_and_white_space() -> None:
    prompt = ChunkPromptTemplate.from_template("{context}?")
    [message] = prompt.format_messages(context=Document(" padded \n"))
    assert message.content[0] == {"type": "text", "text": " padded \n", "id": chunk_id("padded")}
    [message] = prompt.format_messages(context=[Document("  ")])
    assert message.content == [{"type": "text", "text": "  "}, {"type": "text", "text": "?"}]


def test_a_document_that_looks_like_a_template(documents: list[Document]) -> None:
    odd = Document("{question} %s {{x}} \\1 {context}")
    [message] = ChunkPromptTemplate.from_template("{context}|{question}").format_messages(
        context=[odd], question="{context}"
    )
    assert message.text == f"{odd.page_content}|{{context}}"


def test_partial_functions_are_called_once(documents: list[Document]) -> None:
    calls = []
    prompt = ChunkPromptTemplate.from_template("{context}{now}").partial(now=lambda: calls.append(1) or "now")
    prompt.format_messages(context=documents)
    assert len(calls) == 1


def test_placeholders_keep_their_empty_lists() -> None:
    prompt = ChunkPromptTemplate.from_messages([MessagesPlaceholder("history"), ("human", "{context}")])
    assert prompt.format_messages(history=[], context=[]) == [HumanMessage("")]
    nested = ChunkPromptTemplate.from_messages([ChatPromptTemplate.from_messages([MessagesPlaceholder("h")]), "x"])
    assert nested.format_messages(h=[]) == [HumanMessage("x")]


def test_documents_reach_nested_templates_and_both_roles(documents: list[Document]) -> None:
    inner = ChatPromptTemplate.from_messages([("system", "{context}")])
    prompt = ChunkPromptTemplate.from_messages([inner, ("human", "{context} {question}")])
    made = prompt.format_messages(context=documents[:1], question="Who?")
    assert [message.content[0]["id"] for message in made] == [chunk_id(documents[0].page_content)] * 2


@pytest.mark.parametrize(
    "add",
    [
        lambda ours: ours + ChatPromptTemplate.from_messages([("human", "{context}")]),
        lambda ours: ours + HumanMessagePromptTemplate.from_template("{context}"),
        lambda ours: ours + "{context}",
        lambda ours: ours.__add__([("human", "{context}")]),
        lambda ours: ChatPromptTemplate.from_messages([("human", "{context}")]) + ours,
        lambda ours: "{context}" + ours,
        lambda ours: (ours + "{context}").partial(other="x"),
    ],
)
def test_sums_and_slices_keep_chunks_and_options(documents: list[Document], add: Any) -> None:
    ours = ChunkPromptTemplate(
        [("system", "{topic}")],
        document_prompt=PromptTemplate.from_template("<{page_content}>"),
        document_separator="|",
    ).partial(topic="bees")
    summed = add(ours)
    assert isinstance(summed, ChunkPromptTemplate)
    made = summed.format_messages(context=documents[:2])
    assert sorted(message.text for message in made) == sorted(
        ["|".join(f"<{document.page_content}>" for document in documents[:2]), "bees"]
    )
    assert sum("id" in block for message in made if isinstance(message.content, list) for block in message.content) == 2
    [alone] = (summed[1:] if made[1].type == "human" else summed[:1]).format_messages(context=documents[:2])
    assert alone in made


def test_document_prompt_and_separator(documents: list[Document]) -> None:
    prompt = ChunkPromptTemplate(
        ["{context}\nQ"],
        document_prompt=PromptTemplate.from_template("[{source}] {page_content}"),
        document_separator="\n--\n",
    )
    [message] = prompt.format_messages(context=documents[:2])
    assert message.text == "\n--\n".join(f"[{d.metadata['source']}] {d.page_content}" for d in documents[:2]) + "\nQ"
    assert [block.get("id") for block in message.content][1::2] == [chunk_id(d.page_content) for d in documents[:2]]


@pytest.mark.parametrize("template_format", ["jinja2", "mustache"])
def test_other_template_formats(documents: list[Document], template_format: Any) -> None:
    pytest.importorskip("jinja2")
    prompt = ChunkPromptTemplate.from_messages([("human", "{{context}}?")], template_format=template_format)
    [message] = prompt.format_messages(context=documents)
    assert message.text == joined(documents) + "?"
    assert len([block for block in message.content if "id" in block]) == 3


def test_other_keys_of_a_block_stay(documents: list[Document]) -> None:
    block = {"type": "text", "text": "{context}?", "cache_control": {"type": "ephemeral"}}
    [message] = ChunkPromptTemplate.from_messages([("human", [block])]).format_messages(context=documents[:1])
    assert [piece["cache_control"] for piece in message.content] == [{"type": "ephemeral"}] * 2
    assert "id" in message.content[0]


def test_mixed_lists_are_refused(documents: list[Document]) -> None:
    with pytest.raises(InvalidInput, match=r"'context'.*a str \('text'\)"):
        ChunkPromptTemplate.from_template("{context}").format_messages(context=[documents[0], "text"])


@pytest.mark.parametrize(
    "template",
    [
        "{{ context | map(attribute='page_content') | list | tojson }}",
        "{% for d in context %}{{ d.page_content | tojson }}{% endfor %}",
        "{% for d in context %}{{ d.page_content | urlencode }}{% endfor %}",
        "{% for d in context %}{{ d.page_content | e }}{% endfor %}",
        "{context!r}",
    ],
)
def test_no_stand_in_reaches_the_model_where_a_template_escapes(template: str) -> None:
    pytest.importorskip("jinja2")
    kind: Any = "f-string" if "!r" in template else "jinja2"
    odd = [Document("Bees <b> & 'Ada' \" \ue000 são \n twice as long as a stand-in."), Document("short")]
    [message] = ChunkPromptTemplate.from_template(template, template_format=kind).format_messages(context=odd)
    blocks = [block for block in message.content if isinstance(block, dict)]
    assert [block["text"] for block in blocks if "id" in block] == [document.page_content for document in odd]
    assert not any(sign in block["text"] for block in blocks if "id" not in block for sign in ("\\u", "%", "&", "D0P"))


def test_a_template_sees_a_text_as_long_as_it_is(documents: list[Document]) -> None:
    pytest.importorskip("jinja2")
    template = "{% for d in context %}{{ d.page_content | length }} {{ d.page_content | truncate(255) }}{% endfor %}"
    prompt = ChunkPromptTemplate.from_template(template, template_format="jinja2")
    [message] = prompt.format_messages(context=documents)
    assert message.text == "".join(f"{len(one.page_content)} {one.page_content}" for one in documents)
    with pytest.raises(InvalidInput, match="cuts, changes"):
        prompt.format_messages(context=Document("The ferry leaves at nine. " * 20))


@pytest.mark.parametrize(
    "template",
    [
        "{context:.20}",
        "{{ context | upper }}",
        "{{ context | string | lower }}",
        "{{ context | string | title }}",
        "{{ context | string | truncate(9) }}",
        "{{ context | string | wordwrap(30) }}",
        "{% for d in context %}{{ d.page_content | truncate(10) }}{% endfor %}",
        "{% for d in context %}{{ d.page_content[10:25] }}{% endfor %}",
        "{% for d in context %}{{ d.page_content[:12] ~ d.page_content[:-5] }}{% endfor %}",
    ],
)
def test_a_template_that_changes_a_text_is_refused(documents: list[Document], template: str) -> None:
    pytest.importorskip("jinja2")
    kind: Any = "jinja2" if "{{" in template else "f-string"
    prompt = ChunkPromptTemplate.from_messages([("human", template)], template_format=kind)
    with pytest.raises(InvalidInput, match="cuts, changes"):
        prompt.format_messages(context=documents)


def test_a_document_outside_of_text_is_refused(documents: list[Document]) -> None:
    prompt = ChunkPromptTemplate.from_messages([("human", [{"type": "image_url", "image_url": "{context}"}])])
    with pytest.raises(InvalidInput, match="elsewhere"):
        prompt.format_messages(context=documents)


def test_saved_and_loaded(documents: list[Document]) -> None:
    prompt = ChunkPromptTemplate(["{context}"], document_separator="|")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangChain's own: loading is in beta
        again = load(
            dumpd(prompt),
            valid_namespaces=["langchain_cachecraft"],
            allowed_objects=[ChunkPromptTemplate, HumanMessagePromptTemplate, PromptTemplate],
        )
    assert again == prompt
    assert isinstance(again, ChunkPromptTemplate)
