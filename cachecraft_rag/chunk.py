"""Chunks and their ids, which are the same on every machine and in every process."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachecraft_rag.errors import InvalidInput

_NAMESPACE = uuid.UUID("6fdeef16-d438-458e-baff-baee36363709")  # never change it: every id depends on it


def check_text(value: object, what: str) -> str:
    """Return `value`, a `str` that can be written as UTF-8; raise `InvalidInput` for anything else."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a str, got {type(value).__name__}: {value!r:.80}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{what} holds the lone surrogate {value[error.start]!r} at position {error.start}, which is no character; "
            "decode the source with errors='replace'"
        ) from None
    return value


def _stripped(text: object) -> str:
    stripped = check_text(text, "a chunk's text").strip()
    if not stripped:
        raise InvalidInput(f"a chunk's text is empty or only white space: {text!r:.80}; leave such chunks out")
    return stripped


def _digest(stripped: str) -> str:
    return hashlib.sha256(stripped.encode()).hexdigest()


def _id(digest: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"ck1\0{digest}"))


def chunk_id(text: str) -> str:
    """The public id of a chunk's text: a hyphenated lower-case UUID (version 5).

    It depends on the text without its outer white space and on nothing else: not on metadata, not on the process.
    Raises `InvalidInput` if nothing but white space is there.
    """
    return _id(_digest(_stripped(text)))


def point_id(source: str, chunk_id: str) -> str:
    """A UUID for a vector store's point, which tells two sources of the same chunk apart."""
    return str(uuid.uuid5(_NAMESPACE, f"pt1\0{check_text(source, 'a source')}\0{check_text(chunk_id, 'a chunk id')}"))


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of text that is retrieved and placed in a prompt as a unit.

    `text` has no outer white space (it is stripped here). `digest` is its whole sha256 in hex. Two chunks are equal if
    their text and document are; `metadata` is carried along, and never looked at. `recovered`: the chunk was found in a
    flat prompt, not given as a chunk.
    """

    text: str
    document_id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False)
    recovered: bool = field(default=False, compare=False)
    digest: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", _stripped(self.text))
        object.__setattr__(self, "metadata", dict(self.metadata))
        object.__setattr__(self, "digest", _digest(self.text))
        if self.document_id is not None:
            check_text(self.document_id, "a chunk's document_id")

    @property
    def id(self) -> str:
        """`chunk_id(text)`."""
        return _id(self.digest)

    @classmethod
    def of(cls, value: str | Chunk) -> Chunk:
        """`value` itself if it is a chunk, else a chunk with that text."""
        return value if isinstance(value, Chunk) else cls(value)
