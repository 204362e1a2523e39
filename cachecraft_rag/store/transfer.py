"""The way of stored KV from host memory to the device, piece by piece, so that it takes little memory there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch

from cachecraft_rag.store.memory import ChunkKv

PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Piece:
    """K and V of some layers and rows, on the device: [layers, rows, kv_heads, head_size] each.

    `rows`: which ones of those that were asked for.
    """

    layers: slice
    rows: slice
    key: torch.Tensor
    value: torch.Tensor


class Transfer(Protocol):
    def pieces(self, kv: ChunkKv, rows: slice) -> Iterator[Piece]:
        """Rows `rows` (with a start and a stop) of all layers, in the dtype the model computes in.

        A piece's tensors are for what is begun before the next one is asked for: they are overwritten after that.
        """


class DirectTransfer:
    """By plain copies that wait for their end; none at all where the device is the CPU.

    `dtype`: of the model's KV; `piece_bytes`: the most that one piece takes there, None for all at once.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, piece_bytes: int | None = None) -> None:
        self._device = device
        self._dtype = dtype
        self._piece_bytes = piece_bytes

    def pieces(self, kv: ChunkKv, rows: slice) -> Iterator[Piece]:
        layers, _, _, kv_heads, head_size = kv.data.shape
        row_bytes = 2 * kv_heads * head_size * self._dtype.itemsize
        for some, part in cut(layers, rows.stop - rows.start, row_bytes, self._piece_bytes):
            stored = kv.rows(slice(rows.start + part.start, rows.start + part.stop), self._dtype, some)
            key, value = (tensor.to(self._device) for tensor in stored)
            yield Piece(some, part, key, value)


def cut(
    layers: int, rows: int, row_bytes: int, limit: int | None, layer_bytes: int = 0
) -> Iterator[tuple[slice, slice]]:
    """Layers and rows in pieces of at most `limit` bytes, None for one piece.

    `row_bytes`: of one row in one layer, `layer_bytes`: of a layer besides. A row of a layer is never cut. Whole layers
    go together while they fit, and a layer is cut where even one does not.
    """
    if limit is None:
        limit = layers * (rows * row_bytes + layer_bytes)
    row_step = max(min(rows, (limit - layer_bytes) // row_bytes), 1)
    layer_step = max(limit // (row_step * row_bytes + layer_bytes), 1) if row_step == rows else 1
    for layer in range(0, layers, layer_step):
        for row in range(0, rows, row_step):
            yield slice(layer, min(layer + layer_step, layers)), slice(row, min(row + row_step, rows))
