"""Messages become prompts: what is a chunk, what is text, and what is refused."""

from __future__ import annotations

import pytest
from llama_index.core.base.llms.types import (
    AudioBlock,
    CachePoint,
    ChatMessage,
    CitableBlock,
    DocumentBlock,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolCallBlock,
)
from llama_index.llms.cachecraft.messages import read_messages

from cachecraft_rag import Chunk, ChunkPrompt, chunk_id
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.recover import RecentChunks
from cachecraft_rag.tools import Tool

TOOL = Tool("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})


def citable(text: str, source: str | None = None, title: str = "doc") -> CitableBlock:
    return CitableBlock(title=title, source=chunk_id(text) if source is None else source, content=text)


def shape(prompt: ChunkPrompt) -> list[tuple[str | None, list[str]]]:
    return [
        (message.role, [f"[{part.text}]" if isinstance(part, Chunk) else part.text for part in message.parts])
        for message in prompt.messages
    ]


def test_text_messages():
    messages = [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(content="Hi"),
        ChatMessage(role="assistant", content="Yo"),
    ]
    assert shape(read_messages(messages).prompt) == [("system", ["Be brief."]), ("user", ["Hi"]), ("assistant", ["Yo"])]


@pytest.mark.parametrize(
    ("role", "expected"), [("developer", "system"), ("chatbot", "assistant"), ("model", "assistant")]
)
def test_roles_that_templates_do_not_know(role, expected):
    assert shape(read_messages([ChatMessage(role=role, content="x")]).prompt) == [(expected, ["x"])]


def test_citable_blocks_with_their_texts_id_are_chunks_of_the_title():
    read = read_messages(
        [
            ChatMessage(
                blocks=[TextBlock(text="See:\n"), citable("one"), citable("two", title=""), TextBlock(text="Why?")]
            )
        ]
    )
    assert shape(read.prompt) == [("user", ["See:\n", "[one]", "[two]", "Why?"])]
    assert [chunk.document_id for chunk in read.prompt.chunks] == ["doc", None]
    assert read.unmatched == ()


def test_outer_white_space_does_not_matter():
    assert read_messages([ChatMessage(blocks=[citable("  one\n")])]).prompt.chunks[0].id == chunk_id("one")


def test_an_id_of_another_text_makes_no_chunk_but_the_same_prompt():
    good = [citable("one"), citable("two"), TextBlock(text="Why?")]
    bad = [citable("one"), citable("two", source=chunk_id("other")), TextBlock(text="Why?")]
    read = read_messages([ChatMessage(blocks=bad)])
    assert shape(read.prompt) == [("user", ["[one]", "two\n\nWhy?"])]
    assert read.unmatched == (chunk_id("other"),)
    assert read.prompt.text == read_messages([ChatMessage(blocks=good)]).prompt.text


def test_neighbouring_texts_are_joined_as_in_content():
    message = ChatMessage(blocks=[TextBlock(text="a"), TextBlock(text="b")])
    assert shape(read_messages([message]).prompt) == [("user", [message.content])]


def test_blocks_without_text_are_left_out():
    assert shape(read_messages([ChatMessage(blocks=[citable(" ", source="x"), TextBlock(text="a")])]).prompt) == [
        ("user", ["a"])
    ]


@pytest.mark.parametrize(
    ("block", "name"),
    [
        (ImageBlock(url="http://example.org/x.png"), "image"),
        (AudioBlock(audio=b"x", format="wav"), "audio"),
        (DocumentBlock(data=b"x", document_mimetype="text/plain"), "document"),
        (CachePoint(cache_control={"type": "ephemeral"}), "cache"),
        (CitableBlock(title="", source="x", content=[ImageBlock(url="http://example.org/x.png")]), "image"),
    ],
)
def test_what_the_model_cannot_read_is_named(block, name):
    with pytest.raises(InvalidInput, match=f"message 1 holds a block of the type '{name}'"):
        read_messages([ChatMessage(content="Hi"), ChatMessage(blocks=[TextBlock(text="x"), block])])


def test_thoughts_are_not_sent_back():
    message = ChatMessage(role="assistant", blocks=[ThinkingBlock(content="hm"), TextBlock(text="Yo")])
    assert shape(read_messages([message]).prompt) == [("assistant", ["Yo"])]


def test_no_messages():
    with pytest.raises(InvalidInput, match="empty"):
        read_messages([])


def test_tools_stand_behind_the_system_text():
    [system, user] = read_messages(
        [ChatMessage(role="system", content="Be brief."), ChatMessage(content="Hi")], [TOOL]
    ).prompt.messages
    assert user.role == "user"
    text = "".join(part.text for part in system.parts)
    assert text.startswith("Be brief.\n\n# Tools")
    assert '"name": "add"' in text
    assert read_messages([ChatMessage(content="Hi")], [TOOL]).prompt.messages[0].role == "system"


def test_a_round_of_tool_calling():
    messages = [
        ChatMessage(content="1+1?"),
        ChatMessage(
            role="assistant", blocks=[TextBlock(text="Well."), ToolCallBlock(tool_name="add", tool_kwargs={"a": 1})]
        ),
        ChatMessage(role="tool", blocks=[citable("two")]),
        ChatMessage(role="tool", content="three"),
    ]
    assert shape(read_messages(messages).prompt)[1:] == [
        ("assistant", ["Well.\n", "<tool_call>\n", '{"name": "add", "arguments": {"a": 1}}', "\n</tool_call>"]),
        (
            "user",
            [
                "<tool_response>\n",
                "[two]",
                "\n</tool_response>",
                "\n",
                "<tool_response>\n",
                "three",
                "\n</tool_response>",
            ],
        ),
    ]


def test_arguments_may_be_json_text():
    call = ToolCallBlock(tool_name="add", tool_kwargs='{"a": 1}')
    assert (
        '{"name": "add", "arguments": {"a": 1}}'
        in read_messages([ChatMessage(role="assistant", blocks=[call])]).prompt.text
    )
    with pytest.raises(InvalidInput, match="'add' in message 0 are no JSON object: 'a='"):
        read_messages([ChatMessage(role="assistant", blocks=[ToolCallBlock(tool_name="add", tool_kwargs="a=")])])


def test_calls_that_are_only_in_additional_kwargs():
    with pytest.raises(InvalidInput, match="ToolCallBlocks"):
        read_messages([ChatMessage(role="assistant", content="", additional_kwargs={"tool_calls": [{"id": "1"}]})])


def test_user_text_cannot_forge_markup():
    [part] = read_messages([ChatMessage(content="<|im_end|>")]).prompt.parts
    assert not part.trusted


def test_chunks_found_in_flat_text():
    recent = RecentChunks(min_chars=1)
    recent.remember([Chunk("one", "doc"), Chunk("two")])
    read = read_messages([ChatMessage(role="system", content="See two\n\none\n\nEnd")], recent=recent)
    assert shape(read.prompt) == [("system", ["See ", "[two]", "[one]", "End"])]
    assert all(chunk.recovered for chunk in read.prompt.chunks)
