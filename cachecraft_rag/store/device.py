"""Copies of chunk KV on the device: what is used most is spared the way there from host memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from cachecraft_rag.store.eviction import EvictionPolicy, make_way
from cachecraft_rag.store.memory import ChunkKv
from cachecraft_rag.store.transfer import PIECE_BYTES, Piece, Transfer, cut

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """`handles`: the entries that have a copy; `hits`: how often one was used that had its copy already."""

    used_bytes: int = 0
    handles: tuple[int, ...] = ()
    hits: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    """What host memory holds under `handle`. `nbytes`: of a copy; `rows`: where in the pool it is, None for none."""

    handle: int
    namespace: str
    nbytes: int
    rank: float = -math.inf
    rows: Rows | None = None


class DeviceTier:
    """A cache of host memory in device memory that was set aside at start and never grows.

    An entry is copied at a use, where there is room or entries of a lower rank can make some: the rank is the eviction
    policy's, over the uses seen here. The pool is one tensor of token rows. The rows of a copy need not lie together,
    so no byte is lost to gaps. Copies are in the dtype the model computes in, whatever host memory keeps.

    `memory`: [bytes] uint8, contiguous; `shape`: (layers, kv_heads, head_size); `namespace_share`: how much of it one
    namespace may take.
    """

    def __init__(
        self,
        memory: torch.Tensor,
        shape: tuple[int, int, int],
        dtype: torch.dtype,
        transfer: Transfer,
        eviction: EvictionPolicy,
        *,
        namespace_share: float = 1.0,
    ) -> None:
        layers, kv_heads, head_size = shape
        self._row_bytes = 2 * layers * kv_heads * head_size * dtype.itemsize
        count = memory.numel() // self._row_bytes
        self.capacity_bytes = count * self._row_bytes
        self._pool = memory[: self.capacity_bytes].view(dtype).view(layers, 2, count, kv_heads, head_size)
        self._free_rows: Rows = np.arange(count, dtype=np.int64)
        self._transfer = transfer
        self._eviction = eviction
        self._quota = int(self.capacity_bytes * namespace_share)
        self._used_by: Counter[str] = Counter()
        self._entries: dict[int, _Entry] = {}
        self._copied: dict[int, _Entry] = {}
        self._hits = 0

    @property
    def used_bytes(self) -> int:
        return self._used_by.total()

    def report(self) -> DeviceReport:
        return DeviceReport(self.used_bytes, tuple(self._copied), self._hits)

    def use(self, handle: int, kv: ChunkKv, namespace: str, recomputed_share: float) -> None:
        """Count a use of what host memory holds under `handle`, and copy it where it ranks high enough.

        `recomputed_share`: of its tokens that are staged, how many are recomputed all the same.
        """
        entry = self._entries.get(handle)
        if entry is None:
            entry = self._entries[handle] = _Entry(handle, namespace, kv.tokens * self._row_bytes)
        self._eviction.used(entry, recomputed_share, len(self._copied))
        if entry.rows is not None:
            self._hits += 1
        elif self._make_room(entry):
            self._copy(entry, kv)

    def free(self, handle: int) -> None:
        """Host memory gives it up; a handle that was never used is ignored."""
        entry = self._entries.pop(handle, None)
        if entry is not None and entry.rows is not None:
            self._drop(entry)

    def pieces(self, handle: int, rows: slice) -> Iterator[Piece] | None:
        """Some rows of a copy, as `Transfer.pieces` gives them; None where there is none."""
        entry = self._copied.get(handle)
        return None if entry is None or entry.rows is None else self._read(entry.rows[rows])

    @torch.inference_mode()
    def layer(self, handle: int, rows: slice, layer: int, half: int) -> torch.Tensor | None:
        """K (`half` 0) or V (1) of one layer of a copy, [rows, kv_heads, head_size]; None where there is none."""
        entry = self._copied.get(handle)
        if entry is None or entry.rows is None:
            return None
        return self._pool[layer, half].index_select(0, self._on_device(entry.rows[rows]))

    @torch.inference_mode()
    def _read(self, where: Rows) -> Iterator[Piece]:
        index = self._on_device(where)
        layers = self._pool.shape[0]
        for some, part in cut(layers, where.size, self._row_bytes // layers, PIECE_BYTES):
            key, value = (self._pool[some, half].index_select(1, index[part]) for half in (0, 1))
            yield Piece(some, part, key, value)

    @torch.inference_mode()
    def _copy(self, entry: _Entry, kv: ChunkKv) -> None:
        entry.rows, self._free_rows = self._free_rows[: kv.tokens], self._free_rows[kv.tokens :]
        self._copied[entry.handle] = entry
        self._used_by[entry.namespace] += entry.nbytes
        index = self._on_device(entry.rows)
        for piece in self._transfer.pieces(kv, slice(0, kv.tokens)):
            for half, tensor in enumerate((piece.key, piece.value)):
                self._pool[piece.layers, half].index_copy_(1, index[piece.rows], tensor)

    def _make_room(self, entry: _Entry) -> bool:
        own_excess = self._used_by[entry.namespace] + entry.nbytes - self._quota
        excess = self.used_bytes + entry.nbytes - self.capacity_bytes
        lower = (other for other in self._copied.values() if other.rank < entry.rank)
        leaving = make_way(lower, entry.namespace, own_excess, excess)
        for other in leaving or ():
            self._drop(other)
        return leaving is not None

    def _drop(self, entry: _Entry) -> None:
        assert entry.rows is not None
        self._free_rows = np.concatenate((self._free_rows, entry.rows))
        entry.rows = None
        del self._copied[entry.handle]
        self._used_by[entry.namespace] -= entry.nbytes

    def _on_device(self, rows: Rows) -> torch.Tensor:
        return torch.from_numpy(rows).to(self._pool.device)
