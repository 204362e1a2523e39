"""What an entry's file says of itself, in the metadata of its container."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import xxhash

from cachecraft_rag.store.container import Container, Damaged, TensorSpec
from cachecraft_rag.store.keys import token_bytes
from cachecraft_rag.store.seen import SeenContext

FORMAT = "cachecraft-kv"
VERSION = 1
VARIANT_VERSION = 2  # of files that hold a variant, so that who reads version 1 alone takes none for canonical KV
_STRINGS = ("key", "model", "namespace", "data_checksum")


class UnknownVersion(Damaged):
    """The file was written in a format that this version does not read."""


@dataclass(frozen=True, slots=True)
class EntryHeader:
    """All that the index must know of an entry, and what its bytes must be.

    `model`: fingerprint of model, tokenizer, dtype, head and stand-in passages; `chunk_id`: None for those two;
    `cached_at`: position of its first token when it was computed; `documents`: as they were when it was written;
    `seen`: what a variant was computed behind, None for canonical KV.
    """

    key: str
    model: str
    namespace: str
    token_ids: npt.NDArray[np.int32]
    cached_at: int
    chunk_id: str | None
    digest: str | None
    documents: tuple[str, ...]
    tensors: tuple[TensorSpec, ...]
    data_checksum: str
    seen: SeenContext | None = None

    @property
    def data_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def to_metadata(self) -> dict[str, str]:
        fields = {
            "format": FORMAT,
            "version": str(VERSION if self.seen is None else VARIANT_VERSION),
            "key": self.key,
            "model": self.model,
            "namespace": self.namespace,
            "token_ids": base64.b64encode(token_bytes(self.token_ids)).decode(),
            "cached_at": str(self.cached_at),
            "chunk": json.dumps([self.chunk_id, self.digest]),
            "documents": json.dumps(sorted(self.documents)),
            "data_checksum": self.data_checksum,
        }
        if self.seen is not None:
            fields["seen"] = self.seen.to_text()
        return {**fields, "header_checksum": _header_checksum(fields, self.tensors)}

    @classmethod
    def from_container(cls, container: Container) -> Self:
        """`UnknownVersion` or `Damaged` where it cannot be read or does not fit its checksum."""
        fields = dict(container.metadata)
        if fields.get("format") != FORMAT:
            raise Damaged("it is not a file of this store")
        if fields.get("version") not in (str(VERSION), str(VARIANT_VERSION)):
            raise UnknownVersion(
                f"its format has version {fields.get('version')!r}, and {VERSION} and {VARIANT_VERSION} are read here"
            )
        if fields.pop("header_checksum", None) != _header_checksum(fields, container.tensors):
            raise Damaged("its header does not fit its checksum")
        try:
            chunk_id, digest = json.loads(fields["chunk"])
            return cls(
                **{name: fields[name] for name in _STRINGS},
                token_ids=np.frombuffer(base64.b64decode(fields["token_ids"]), dtype="<i4").astype(np.int32),
                cached_at=int(fields["cached_at"]),
                chunk_id=chunk_id,
                digest=digest,
                documents=tuple(json.loads(fields["documents"])),
                tensors=container.tensors,
                seen=SeenContext.from_text(fields["seen"]) if fields["version"] == str(VARIANT_VERSION) else None,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise Damaged(f"its header lacks or garbles {error}") from error


def data_checksum(*buffers: memoryview) -> str:
    """xxh3 (128 bits, hex) of the tensors' bytes."""
    digest = xxhash.xxh3_128()
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()


def _header_checksum(fields: Mapping[str, str], tensors: tuple[TensorSpec, ...]) -> str:
    content: Any = [sorted(fields.items()), [[t.name, t.dtype, list(t.shape)] for t in tensors]]
    return xxhash.xxh3_128(json.dumps(content).encode()).hexdigest()
