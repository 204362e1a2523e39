"""The canonical head, the fingerprint, loading, counting, threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from made_tokenizers import BOS_FIRST, CHATML, KINDS, NASTY, byte_level, each_kind, fast, made

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput, UnsupportedModel
from cachecraft_rag.prompt import ChunkPrompt
from cachecraft_rag.tokenise import PromptTokenizer


@each_kind
@pytest.mark.parametrize("default_system", [None, "", "Be brief. <|im_end|>"])
def test_default_chats_begin_with_the_head(kind: str, default_system: str | None) -> None:
    tokenizer = fast(KINDS[kind](), BOS_FIRST)
    prompts = PromptTokenizer.from_pretrained(tokenizer, default_system=default_system)
    encoded = prompts.encode(ChunkPrompt.chat(["the words", "b"], "?"))
    assert encoded.token_ids[: encoded.chunks[0].start] == prompts.head_token_ids
    question_first = prompts.encode(ChunkPrompt.chat(["a"], "the ?", question_first=True)).token_ids
    assert question_first[: len(prompts.head_token_ids)] == prompts.head_token_ids
    other = prompts.encode(ChunkPrompt.chat(["the words", "b"], "?", system="Other."))
    assert other.token_ids[: len(prompts.head_token_ids)] != prompts.head_token_ids
    same = prompts.encode(ChunkPrompt.chat(["the words", "b"], "?", system=default_system))
    assert same == encoded


def test_head_without_a_template_is_bos_or_nothing() -> None:
    assert made("byte level", None)[0].head_token_ids == ()
    prompts, tokenizer = made("byte level, BOS", None)
    assert prompts.head_token_ids == (tokenizer.bos_token_id,)
    assert prompts.encode(ChunkPrompt.from_parts([Chunk("a")])).token_ids[:1] == prompts.head_token_ids


def test_fingerprint_changes_with_chunk_ids_only() -> None:
    base = made("byte level", CHATML)[0].fingerprint()
    assert base == PromptTokenizer.from_pretrained(fast(byte_level(add_bos=False), CHATML)).fingerprint()
    assert base == made("byte level", None)[0].fingerprint() == made("byte level, BOS")[0].fingerprint()
    other = byte_level(add_bos=False)
    other.add_tokens(["<think>"])
    assert base != PromptTokenizer.from_pretrained(fast(other, CHATML)).fingerprint()


def test_loads_from_a_folder(tmp_path: Path) -> None:
    tokenizer = fast(byte_level(add_bos=True), BOS_FIRST)
    tokenizer.save_pretrained(tmp_path)
    prompt = ChunkPrompt.chat(["the words"], "?")
    loaded = PromptTokenizer.from_pretrained(tmp_path)
    assert loaded.encode(prompt) == made("byte level, BOS")[0].encode(prompt)
    assert loaded.fingerprint() == made("byte level, BOS")[0].fingerprint()
    with pytest.raises(InvalidInput, match="nowhere"):
        PromptTokenizer.from_pretrained(tmp_path / "nowhere")


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="not a fast tokenizer"):
        PromptTokenizer.from_pretrained(object())


def test_settings_of_the_shared_tokenizer_do_not_matter() -> None:
    tokenizer = fast(byte_level(add_bos=False))
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=100)
    prompts = PromptTokenizer.from_pretrained(tokenizer)
    tokenizer.backend_tokenizer.encode_special_tokens = True
    tokenizer.chat_template = "changed"
    prompt = ChunkPrompt.chat(["the words"], "?")
    assert prompts.encode(prompt) == made("byte level", CHATML)[0].encode(prompt)


def test_count() -> None:
    prompts, _ = made("byte level, BOS")
    assert prompts.count("") == 0
    assert prompts.count("<s>") == len("<s>")
    assert prompts.count("xyz\n\n") == len(prompts.encode_chunk("xyz"))


def test_a_prompt_without_tokens_is_refused() -> None:
    prompts, _ = made("byte level", "{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(InvalidInput, match="no tokens"):
        prompts.encode(ChunkPrompt.from_messages([{"role": "user", "content": ""}]))


def test_threads_get_equal_results() -> None:
    prompts = PromptTokenizer.from_pretrained(fast(byte_level(add_bos=True), BOS_FIRST))
    jobs = [ChunkPrompt.chat(NASTY[:2] + NASTY[n : n + 3], NASTY[n], system="<s>") for n in (2, 5, 8, 10, 3)] * 40
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(prompts.encode, jobs))
    alone = PromptTokenizer.from_pretrained(fast(byte_level(add_bos=True), BOS_FIRST))
    assert results == [alone.encode(job) for job in jobs]


def test_the_cache_of_chunk_ids_is_bounded() -> None:
    from cachecraft_rag.tokenise import _ChunkCache

    cached = _ChunkCache(10)
    for name in "abcd":
        cached.put(name, (1, 2, 3, 4))
        cached.put("a", (1, 2, 3, 4))
    assert [cached.get(name) is not None for name in "abcd"] == [True, False, False, True]
    cached.put("e", (0,) * 11)
    assert cached.get("e") is None
    assert cached.get("a") is None
    cached.put("f", (1,))
    assert cached.get("f") == (1,)
