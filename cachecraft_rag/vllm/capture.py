"""Looking at what the model writes while a selective forward of ours runs.

Each attention layer's `impl` is replaced by a `CapturingImpl`, which passes everything on to vLLM's own and, only
what its recorder was asked for, copies keys, values and queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
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


@dataclass
class Watch:
    """Which layers of a forward are looked at, and copies of what was seen: [rows, heads, head_size] each.

    Keys and queries have RoPE applied. With `ends` the forward ends once all was seen: later layers are not run, and
    what it would have returned is not needed.
    """

    queries_of: frozenset[int] = frozenset()
    keys_of: frozenset[int] = frozenset()
    values_of: frozenset[int] = frozenset()
    ends: bool = False
    queries: dict[int, torch.Tensor] = field(default_factory=dict)
    keys: dict[int, torch.Tensor] = field(default_factory=dict)
    values: dict[int, torch.Tensor] = field(default_factory=dict)

    def see_query(self, layer: int, query: torch.Tensor) -> None:
        if layer in self.queries_of:
            self.queries[layer] = query.clone()
            self._end()

    def see_key_value(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if layer in self.keys_of:
            self.keys[layer] = key.clone()
        if layer in self.values_of:
            self.values[layer] = value.clone()
        if layer in self.keys_of or layer in self.values_of:
            self._end()

    def _end(self) -> None:
        seen = [len(self.queries), len(self.keys), len(self.values)]
        if self.ends and seen == [len(self.queries_of), len(self.keys_of), len(self.values_of)]:
            raise _EnoughSeen


class Recorder:
    """What is captured during the running forward; nothing outside of one."""

    def __init__(self) -> None:
        self.rows: tuple[CaptureRows, ...] = ()
        self.watch: Watch | None = None

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[Watch]:
        """While it is open, forwards are looked at."""
        self.watch = watch
        try:
            with suppress(_EnoughSeen):
                yield watch
        finally:
            self.watch = None

    def record_query(self, layer: int, query: torch.Tensor) -> None:
        if self.watch is not None:
            self.watch.see_query(layer, query)

    def record(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """`key`, `value`: [rows, kv_heads, head_size] of one layer, key with RoPE applied."""
        for rows in self.rows:
            stop = rows.offset + rows.row_stop - rows.row_start
            rows.target.key[layer, rows.offset : stop].copy_(key[rows.row_start : rows.row_stop])
            rows.target.value[layer, rows.offset : stop].copy_(value[rows.row_start : rows.row_stop])
        if self.watch is not None:
            self.watch.see_key_value(layer, key, value)


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
        self._recorder.record(self._layer_index, key, value)
        self._impl.do_kv_cache_update(layer, key, value, kv_cache, slot_mapping)

    def forward(self, layer: torch.nn.Module, query: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._recorder.record_query(self._layer_index, query)
        return self._impl.forward(layer, query, *args, **kwargs)
