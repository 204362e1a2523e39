"""Chunk KV in host memory. What is kept, and for how long, is the index's decision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cachecraft_rag.store.container import TensorSpec

_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True, eq=False)
class ChunkKv:
    """K (rotated to the positions it was computed at) and V of one stored piece, in the dtype the model computes in.

    `data`: [layers, 2, tokens, kv_heads, head_size], contiguous: K and V of one layer are one piece of memory.
    """

    data: torch.Tensor

    @property
    def key(self) -> torch.Tensor:
        """[layers, tokens, kv_heads, head_size], a view."""
        return self.data[:, 0]

    @property
    def value(self) -> torch.Tensor:
        """[layers, tokens, kv_heads, head_size], a view."""
        return self.data[:, 1]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def buffer(self) -> memoryview:
        """The bytes themselves, not a copy."""
        return memoryview(self.data.view(-1).view(torch.uint8).numpy())

    def spec(self) -> TensorSpec:
        return TensorSpec("kv", _DTYPES[self.data.dtype], tuple(self.data.shape))


class HostMemoryStore:
    """Tensors by handle."""

    def __init__(self, layers: int, kv_heads: int, head_size: int, dtype: torch.dtype) -> None:
        self._shape = (layers, kv_heads, head_size)
        self._dtype = dtype
        self._entries: dict[int, ChunkKv] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries.values())

    def allocate(self, tokens: int) -> ChunkKv:
        """Memory for one piece, not yet stored."""
        layers, kv_heads, head_size = self._shape
        return ChunkKv(torch.empty((layers, 2, tokens, kv_heads, head_size), dtype=self._dtype))

    def put(self, handle: int, kv: ChunkKv) -> None:
        self._entries[handle] = kv

    def get(self, handle: int) -> ChunkKv | None:
        return self._entries.get(handle)

    def free(self, handle: int) -> None:
        """Drop a piece; a handle that is not stored is ignored (its capture may never have finished)."""
        self._entries.pop(handle, None)
