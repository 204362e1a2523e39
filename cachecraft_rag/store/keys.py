"""The private key of a chunk's KV: whatever changes the numbers changes the key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

FORMAT_VERSION = 1
_SAMPLE_BYTES = 1 << 16
_SAMPLES_PER_FILE = 64


def token_bytes(token_ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> bytes:
    """Token ids as little-endian int32, the same on every machine."""
    return np.asarray(token_ids, dtype="<i4").tobytes()


class KeyMaker:
    """Makes KV keys under one model, tokenizer, dtype and rotary configuration.

    `identity`: whatever the numbers depend on beside namespace and token ids (JSON-serialisable); `head_token_ids`:
    the canonical head that chunk KV is computed behind, with what stands in for its neighbours.
    """

    def __init__(self, identity: Mapping[str, object], head_token_ids: Sequence[int]) -> None:
        document = json.dumps({"format": FORMAT_VERSION, **identity}, sort_keys=True)
        self.description = document + "\n"
        self._base = hashlib.sha256(document.encode())
        self._base.update(b"\0head\0" + token_bytes(head_token_ids) + b"\0")

    @property
    def fingerprint(self) -> str:
        """sha256 (hex) of all that a key depends on beside namespace and token ids."""
        return self._base.hexdigest()

    def chunk(self, namespace: str, token_ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
        """sha256 (hex) of a chunk's canonical KV."""
        return self._key(b"chunk", namespace, token_bytes(token_ids))

    def head(self, namespace: str, token_ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
        """sha256 (hex) of the KV of a prompt's first tokens."""
        return self._key(b"head", namespace, token_bytes(token_ids))

    def text(self, namespace: str, token_ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> str:
        """sha256 (hex) that names a piece of text between chunks; it is never stored."""
        return self._key(b"text", namespace, token_bytes(token_ids))

    def variant(
        self, namespace: str, token_ids: Sequence[int] | npt.NDArray[np.integer[Any]], in_front: Sequence[str]
    ) -> str:
        """sha256 (hex) of a chunk's KV computed behind head and `in_front`: keys of the pieces between, in order."""
        return self._key(b"variant", namespace, "".join(in_front).encode() + b"\0" + token_bytes(token_ids))

    def _key(self, kind: bytes, namespace: str, body: bytes) -> str:
        key = self._base.copy()
        name = namespace.encode()
        key.update(kind + b"\0" + len(name).to_bytes(4, "little") + name + body)
        return key.hexdigest()


def weights_fingerprint(model_dir: Path) -> str:
    """sha256 (hex) over a model folder's config and samples of its weights.

    Of each weight file it reads the size, the beginning (where safetensors keeps names and shapes) and 64 pieces of
    64 KiB spread over the rest: two fine-tunings of one model differ in it, and it takes well under a second.
    """
    digest = hashlib.sha256()
    weights = sorted([*model_dir.glob("*.safetensors"), *model_dir.glob("*.bin"), *model_dir.glob("*.gguf")])
    for path in [*sorted(model_dir.glob("config.json")), *weights]:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        step = max(size // _SAMPLES_PER_FILE, _SAMPLE_BYTES)
        with path.open("rb") as file:
            for offset in range(0, size, step):
                file.seek(offset)
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()
