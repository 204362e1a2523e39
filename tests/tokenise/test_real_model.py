"""A real model's tokenizer and template."""

import os
from typing import Any

import pytest
from made_tokenizers import MESSAGES, NASTY, added_ids, assert_tiled, ids_of

from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.tokenise import PromptTokenizer


@pytest.fixture(scope="module")
def real() -> tuple[PromptTokenizer, Any]:
    path = os.environ.get("CACHECRAFT_TEST_MODEL")
    if not path:
        pytest.skip("set CACHECRAFT_TEST_MODEL to the folder of an instruct model")
    transformers = pytest.importorskip("transformers")
    return PromptTokenizer.from_pretrained(path), transformers.AutoTokenizer.from_pretrained(path)


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_real_chat_equals_the_tokenizers_own(real: tuple[PromptTokenizer, Any], system: str | None) -> None:
    prompts, tokenizer = real
    messages = [*([{"role": "system", "content": system}] if system else []), *MESSAGES]
    own = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert prompts.encode(ChunkPrompt.from_messages(messages)).token_ids == tuple(own)


def test_real_chunks(real: tuple[PromptTokenizer, Any]) -> None:
    prompts, tokenizer = real
    chunks = [text for text in NASTY if text.strip()]
    encoded = prompts.encode(ChunkPrompt.chat(chunks, "<|im_end|>"))
    assert_tiled(encoded)
    assert encoded.token_ids[: encoded.chunks[0].start] == prompts.head_token_ids
    for index, text in enumerate(chunks):
        assert added_ids(tokenizer).isdisjoint(ids_of(encoded, index))
        assert tokenizer.decode(ids_of(encoded, index)) == text.strip() + "\n\n"
