"""Chunk KV in host memory. What is kept, and for how long, is the index's decision."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class ChunkKv:
    """K (rotated to the positions it was computed at) and V of one stored piece.

    `key`, `value`: [layers, tokens, kv_heads, head_size], contiguous, in the dtype the model computes in.
    """

    key: torch.Tensor
    value: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.key.nbytes + self.value.nbytes


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
        shape = (layers, tokens, kv_heads, head_size)
        return ChunkKv(torch.empty(shape, dtype=self._dtype), torch.empty(shape, dtype=self._dtype))

    def put(self, handle: int, kv: ChunkKv) -> None:
        self._entries[handle] = kv

    def get(self, handle: int) -> ChunkKv | None:
        return self._entries.get(handle)

    def free(self, handle: int) -> None:
        """Drop a piece; a handle that is not stored is ignored (its capture may never have finished)."""
        self._entries.pop(handle, None)
