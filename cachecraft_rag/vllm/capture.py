"""Looking at what the model writes while a selective forward of ours runs.

Each attention layer's `impl` is replaced by a `CapturingImpl`, which passes everything on to vLLM's own and, only
what its recorder was asked for, copies keys, values and queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

from cachecraft_rag.store.memory import ChunkKv


@dataclass(frozen=True, slots=True)
class CaptureRows:
    """Rows `row_start` to `row_stop` of the running forward go to rows `offset` on of `target`."""

    target: ChunkKv
    row_start: int
    row_stop: int
    offset: int


class Recorder:
    """What is captured during the running forward; nothing outside of one."""

    def __init__(self) -> None:
        self.rows: tuple[CaptureRows, ...] = ()
        self._queries: list[torch.Tensor] | None = None
        self._layers = 0

    @contextmanager
    def queries(self, layers: int) -> Iterator[list[torch.Tensor]]:
        """While it is open, the queries of the first `layers` layers: [rows, heads, head_size], with RoPE applied.

        A forward inside of it ends there: later layers are not run, and what it would have returned is not needed.
        """
        self._queries, self._layers = [], layers
        try:
            with suppress(_EnoughSeen):
                yield self._queries
        finally:
            self._queries = None

    def record_query(self, query: torch.Tensor) -> None:
        if self._queries is not None:
            self._queries.append(query.clone())
            if len(self._queries) == self._layers:
                raise _EnoughSeen

    def record(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """`key`, `value`: [rows, kv_heads, head_size] of one layer, key with RoPE applied."""
        for rows in self.rows:
            stop = rows.offset + rows.row_stop - rows.row_start
            rows.target.key[layer, rows.offset : stop].copy_(key[rows.row_start : rows.row_stop])
            rows.target.value[layer, rows.offset : stop].copy_(value[rows.row_start : rows.row_stop])


class _EnoughSeen(BaseException):
    """Ends a forward whose later layers nobody looks at; unlike an `Exception` nothing on its way handles it."""


class CapturingImpl:
    """Stands in for an attention `impl` and delegates every attribute and call to it."""

    def __init__(self, impl: Any, layer_index: int, recorder: Recorder) -> None:
        object.__setattr__(self, "_impl", impl)
        object.__setattr__(self, "_layer_index", layer_index)
        object.__setattr__(self, "_recorder", recorder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._impl, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._impl, name, value)

    def do_kv_cache_update(
        self,
        layer: torch.nn.Module,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        if self._recorder.rows:
            self._recorder.record(self._layer_index, key, value)
        self._impl.do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

    def forward(self, layer: torch.nn.Module, query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._recorder.record_query(query)
        return self._impl.forward(layer, query, *args, **kwargs)
