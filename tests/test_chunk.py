import copy
import pickle
import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.chunk import Chunk, chunk_id, point_id
from cachecraft_rag.errors import CachecraftError, InvalidInput

texts = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: text.strip())
blanks = st.text(" \t\n\r\u00a0\u3000", max_size=5)


def test_ids_never_change() -> None:
    """Ids are in users' vector stores: a change here orphans all of them."""
    assert chunk_id("Paris is the capital of France.") == "acd183c7-30c9-56a0-9ac4-4f7a63f9d03b"
    assert chunk_id("東京 🗼") == "26cd4b01-65f7-535b-a4b0-43e0a6cebfae"
    assert point_id("a.pdf", chunk_id("x")) == "1e0aa1c3-1cbe-53dc-aec1-8fbe1fb15c0c"


def test_id_is_a_lower_case_hyphenated_uuid5() -> None:
    id_ = chunk_id("x")
    assert id_ == str(uuid.UUID(id_))
    assert uuid.UUID(id_).version == 5


@given(texts, blanks, blanks)
def test_outer_white_space_does_not_count(text: str, before: str, after: str) -> None:
    assert chunk_id(before + text + after) == chunk_id(text) == Chunk(before + text + after).id
    assert Chunk(before + text + after).text == text.strip()


@given(texts, texts)
def test_ids_differ_where_texts_differ(one: str, other: str) -> None:
    assert (chunk_id(one) == chunk_id(other)) == (one.strip() == other.strip())


def test_inner_white_space_case_and_unicode_form_count() -> None:
    assert len({chunk_id(text) for text in ("a b", "a  b", "a\nb", "A b", "\u00e9", "e\u0301")}) == 6


def test_id_is_the_same_in_another_process_with_another_hash_seed() -> None:
    code = "from cachecraft_rag.chunk import chunk_id; print(chunk_id('x'))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == chunk_id("x")


@pytest.mark.parametrize("text", ["", " \n\t", "\u3000"])
def test_empty_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="leave such chunks out"):
        Chunk(text)
    with pytest.raises(InvalidInput, match="leave such chunks out"):
        chunk_id(text)


@pytest.mark.parametrize("value", [None, 3, b"bytes", ["a"]])
def test_other_types_are_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInput, match=type(value).__name__):
        Chunk.of(value)  # type: ignore[arg-type]


def test_lone_surrogates_are_refused() -> None:
    with pytest.raises(InvalidInput, match="position 1"):
        Chunk("a\ud800")


def test_errors_are_ours_and_value_errors() -> None:
    with pytest.raises(CachecraftError):
        Chunk("")
    assert issubclass(InvalidInput, ValueError)


def test_metadata_is_no_part_of_identity_and_not_shared() -> None:
    metadata = {"modified": "today", "scores": [1]}
    chunk = Chunk("x", "doc", metadata)
    metadata["modified"] = "tomorrow"
    assert chunk.metadata["modified"] == "today"
    assert chunk == Chunk("x", "doc")
    assert hash(chunk) == hash(Chunk("x", "doc"))
    assert chunk.id == Chunk("x").id
    assert chunk.digest == Chunk("x").digest
    assert chunk != Chunk("x", "other")


def test_of() -> None:
    chunk = Chunk("x", "doc")
    assert Chunk.of(chunk) is chunk
    assert Chunk.of(" x ") == Chunk("x")


def test_frozen_and_copied_whole() -> None:
    chunk = Chunk("x", "doc", {"a": 1})
    with pytest.raises(AttributeError):
        chunk.text = "y"  # type: ignore[misc]
    for twin in (pickle.loads(pickle.dumps(chunk)), copy.deepcopy(chunk)):
        assert twin == chunk
        assert twin.metadata == {"a": 1}
        assert twin.id == chunk.id
        assert twin.digest == chunk.digest


def test_point_id_tells_sources_apart() -> None:
    id_ = chunk_id("x")
    assert point_id("a", id_) != point_id("b", id_) != id_
    assert uuid.UUID(point_id("a", id_)).version == 5
    assert point_id("a", id_) == point_id("a", id_)


def test_import_is_light() -> None:
    code = (
        "import sys, cachecraft_rag.tokenise, cachecraft_rag.chunk, cachecraft_rag.prompt;"
        "print([m for m in ('torch', 'vllm', 'transformers', 'tokenizers', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
