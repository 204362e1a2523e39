"""BOS, and what the chat template does with parts it never sees."""

import pytest
from made_tokenizers import BOS_FIRST, CHATML, LLAMA_2, MESSAGES, byte_level, each_kind, fast, made, metaspace

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput, UnsupportedModel
from cachecraft_rag.prompt import ChunkPrompt, Text
from cachecraft_rag.tokenise import PromptTokenizer


@pytest.mark.parametrize("template", [CHATML, BOS_FIRST])
@pytest.mark.parametrize("name", ["byte level, BOS", "metaspace", "metaspace, legacy"])
def test_bos_exactly_once(name: str, template: str) -> None:
    prompts, tokenizer = made(name, template)
    for prompt in (ChunkPrompt.chat(["a <s> b"], "<s>"), ChunkPrompt.from_parts(["<s>", Chunk("<s>")])):
        ids = prompts.encode(prompt).token_ids
        assert ids[0] == tokenizer.bos_token_id
        assert ids.count(tokenizer.bos_token_id) == 1
    assert prompts.head_token_ids[0] == tokenizer.bos_token_id


def test_no_bos_where_the_tokenizer_adds_none() -> None:
    prompts, tokenizer = made("byte level", CHATML)
    for prompt in (ChunkPrompt.chat(["a"], "b"), ChunkPrompt.from_parts([Chunk("a")])):
        assert tokenizer.bos_token_id not in prompts.encode(prompt).token_ids


@each_kind
@pytest.mark.parametrize("template", [BOS_FIRST, LLAMA_2])
def test_trusted_chat_equals_the_tokenizers_own(kind: str, template: str) -> None:
    prompts, tokenizer = made(kind, template)
    own = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    trusted = [{**message, "content": [Text(message["content"], trusted=True)]} for message in MESSAGES]
    assert prompts.encode(ChunkPrompt.from_messages(trusted)).token_ids == tuple(own)


@pytest.mark.parametrize("name", ["byte level", "byte level, BOS", "metaspace"])
def test_untrusted_chat_equals_the_tokenizers_own(name: str) -> None:
    """Where parts meet at a line's end, encoding them one by one changes nothing."""
    prompts, tokenizer = made(name)
    own = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert prompts.encode(ChunkPrompt.from_messages(MESSAGES)).token_ids == tuple(own)


@each_kind
def test_free_form_equals_the_tokenizers_own(kind: str) -> None:
    prompts, tokenizer = made(kind, None)
    text = "the words of the question"
    assert prompts.encode(ChunkPrompt.from_parts([text])).token_ids == tuple(tokenizer(text)["input_ids"])


@pytest.mark.parametrize("name", ["metaspace", "metaspace, legacy"])
def test_no_blank_is_put_in_front_of_parts(name: str) -> None:
    prompts, tokenizer = made(name, None)
    encoded = prompts.encode(ChunkPrompt.from_parts(["the a\n", Chunk("the b"), "the c</s>", Text("\nd</s>the", True)]))
    flat = "the a\nthe b\n\nthe c</s>\nd"
    assert tokenizer.decode(encoded.token_ids, skip_special_tokens=True).startswith(flat)
    assert len(encoded.token_ids) == len(tokenizer("the a\nthe b\n\nthe c")["input_ids"]) + len("</s>\nd") + len(
        tokenizer("</s>the", add_special_tokens=False)["input_ids"]
    )


def test_the_template_neither_trims_nor_escapes_parts() -> None:
    escaping = "{% for m in messages %}<|im_start|>{{ m.content | trim | e }}<|im_end|>{% endfor %}"
    prompts, tokenizer = made("byte level", escaping)
    encoded = prompts.encode(ChunkPrompt.from_messages([{"role": "user", "content": [" <a> & ", Chunk("x<y"), " "]}]))
    assert tokenizer.decode(encoded.token_ids) == "<|im_start|> <a> & x<y\n\n <|im_end|>"


def test_a_joiner_of_the_template_itself_is_folded_too() -> None:
    prompts, tokenizer = made("byte level", "{% for m in messages %}{{ m.content }}\n\nAnswer:{% endfor %}")
    assert tokenizer.decode(prompts.encode(ChunkPrompt.chat(["a"], "")).token_ids) == "a\n\nAnswer:"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("x", "drops or changes a chunk"),
        ("{{ m.content | upper }}", "drops or changes a chunk"),
        ("{{ m.content[:35] }}", "drops or changes the text"),
        ("{{ m.content[:-1] }}", "drops or changes the text"),
        ("{{ m.content }}{{ m.content }}", "repeats a chunk"),
        ("{{ m.content[:20] }}: {{ m.content }}", "repeats or changes a part"),
    ],
)
def test_a_template_that_spoils_contents_is_refused(content: str, reason: str) -> None:
    prompts, _ = made("byte level", "{% for m in messages %}" + content + "{% endfor %}")
    with pytest.raises(UnsupportedModel, match=reason):
        prompts.encode(ChunkPrompt.from_messages([{"role": "user", "content": [Chunk("a"), "x"]}]))


def test_a_template_that_changes_the_order_is_refused() -> None:
    prompts, _ = made("byte level", "{% for m in messages | reverse %}{{ m.content }}{% endfor %}")
    with pytest.raises(UnsupportedModel, match="moves a chunk"):
        prompts.encode(ChunkPrompt.from_messages([{"role": "user", "content": Chunk(text)} for text in "ab"]))


def test_a_dropped_system_text_is_named() -> None:
    template = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
    prompts, _ = made("byte level", template)
    with pytest.raises(InvalidInput, match="role 'system'; leave the system text out"):
        prompts.encode(ChunkPrompt.chat(["a"], "b", system="c"))
    assert prompts.encode(ChunkPrompt.chat(["a"], "b")).chunks


def test_a_refused_system_role_is_named() -> None:
    prompts, _ = made("metaspace", LLAMA_2)
    with pytest.raises(InvalidInput, match="refuses a system message"):
        prompts.encode(ChunkPrompt.chat(["a"], "b", system="c"))
    with_default = PromptTokenizer.from_pretrained(
        fast(metaspace(add_bos=True, legacy=False), LLAMA_2), default_system="c"
    )
    with pytest.raises(InvalidInput, match="refuses a system message"):
        _ = with_default.head_token_ids


def test_refused_roles_are_named() -> None:
    template = "{{ raise_exception('roles must alternate') if messages | length > 1 }}{{ messages[0].content }}"
    prompts, _ = made("byte level", template)
    with pytest.raises(InvalidInput, match="roles user, user: roles must alternate"):
        prompts.encode(ChunkPrompt.from_messages([{"role": "user", "content": "a"}] * 2))


def test_system_text_may_move_into_the_last_turn() -> None:
    template = (
        "{% set system = messages[0].content %}{% for m in messages[1:] %}<|im_start|>"
        "{% if loop.last %}{{ system }}\n\n{% endif %}{{ m.content }}{% endfor %}"
    )
    prompts, tokenizer = made("byte level", template)
    turns = [("system", "s"), ("user", Chunk("a")), ("assistant", "b"), ("user", Chunk("c"))]
    encoded = prompts.encode(ChunkPrompt.from_messages([{"role": role, "content": part} for role, part in turns]))
    assert tokenizer.decode(encoded.token_ids) == "<|im_start|>a\n\n<|im_start|>b<|im_start|>s\n\nc\n\n"


def test_without_a_template_from_parts_is_the_way() -> None:
    prompts, _ = made("byte level", None)
    with pytest.raises(UnsupportedModel, match="from_parts"):
        prompts.encode(ChunkPrompt.chat(["a"], "b"))


def test_template_arguments_are_passed_on() -> None:
    template = "{{ date_string }}|{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = fast(byte_level(add_bos=False), template)
    prompts = PromptTokenizer.from_pretrained(tokenizer, chat_template_kwargs={"date_string": "May"})
    assert tokenizer.decode(prompts.head_token_ids) == "May|"
