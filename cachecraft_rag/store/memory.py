"""Chunk KV in host memory. What is kept, and for how long, is the index's decision."""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch

from cachecraft_rag.store.compression import FORMATS, NumberFormat, dequantise, quantise
from cachecraft_rag.store.container import TensorSpec

_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
}


@dataclass(frozen=True, slots=True, eq=False)
class ChunkKv:
    """K (rotated to the positions it was computed at) and V of one stored piece.

    `data`: [layers, 2, tokens, kv_heads, head_size], contiguous: K and V of one layer are one piece of memory. In the
    dtype the model computes in, or in 8 bits with `scales`: [layers, 2, 1, kv_heads, head_size] in float32.
    """

    data: torch.Tensor
    scales: torch.Tensor | None = None

    @property
    def key(self) -> torch.Tensor:
        """[layers, tokens, kv_heads, head_size], a view of `data`."""
        return self.data[:, 0]

    @property
    def value(self) -> torch.Tensor:
        """[layers, tokens, kv_heads, head_size], a view of `data`."""
        return self.data[:, 1]

    @property
    def tokens(self) -> int:
        return self.data.shape[2]

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + (self.scales.nbytes if self.scales is not None else 0)

    def rows(self, rows: slice, dtype: torch.dtype, layers: slice = slice(None)) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of some tokens as the model wants them, [layers, rows, kv_heads, head_size] each."""
        data = self.data[layers, :, rows]
        if self.scales is not None:
            data = dequantise(data, self.scales[layers], dtype)
        return data[:, 0], data[:, 1]

    def compressed(self, form: NumberFormat) -> ChunkKv:
        return ChunkKv(*quantise(self.data, form)) if self.scales is None else self

    def buffers(self) -> list[memoryview]:
        """The bytes themselves, not a copy, in the order of `specs`."""
        return [memoryview(tensor.view(-1).view(torch.uint8).numpy()) for tensor in self._tensors()]

    def specs(self) -> tuple[TensorSpec, ...]:
        names = ("kv", "scales")
        tensors = zip(names, self._tensors(), strict=False)
        return tuple(TensorSpec(name, _DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors)

    def _tensors(self) -> list[torch.Tensor]:
        return [self.data] if self.scales is None else [self.data, self.scales]


class HostMemoryStore:
    """Tensors by handle. `dtype`: of the model's KV; with `compress`, one of `FORMATS`, it is kept in 8 bits."""

    def __init__(
        self, layers: int, kv_heads: int, head_size: int, dtype: torch.dtype, *, compress: str | None = None
    ) -> None:
        self._shape = (layers, kv_heads, head_size)
        self.dtype = dtype
        self._form = FORMATS[compress] if compress is not None else None
        self._entries: dict[int, ChunkKv] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self._entries.values())

    def allocate(self, tokens: int) -> ChunkKv:
        """Memory to capture one piece in, not yet stored."""
        return ChunkKv(self._empty(tokens, self.dtype))

    def allocate_stored(self, tokens: int) -> ChunkKv:
        """Memory for one piece in the form in which it is kept."""
        if self._form is None:
            return self.allocate(tokens)
        return ChunkKv(self._empty(tokens, self._form.dtype), self._empty(1, torch.float32))

    def put(self, handle: int, kv: ChunkKv) -> None:
        self._entries[handle] = kv.compressed(self._form) if self._form is not None else kv

    def get(self, handle: int) -> ChunkKv | None:
        return self._entries.get(handle)

    def free(self, handle: int) -> None:
        """Drop a piece; a handle that is not stored is ignored (its capture may never have finished)."""
        self._entries.pop(handle, None)

    def _empty(self, tokens: int, dtype: torch.dtype) -> torch.Tensor:
        """Pages of its own, which go back to the system when the tensor does.

        Pieces of all sizes that live for long would leave holes in the heap, and it would grow beyond every budget.
        """
        layers, kv_heads, head_size = self._shape
        shape = (layers, 2, tokens, kv_heads, head_size)
        pages = mmap.mmap(-1, max(math.prod(shape) * dtype.itemsize, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(pages, dtype=dtype, count=math.prod(shape)).view(shape)
