"""Staging: the cached K and V of chunks, turned to their new positions and written into a request's blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from cachecraft_rag.kernels import RotarySpec, rotate
from cachecraft_rag.reuse import StagedSpan
from cachecraft_rag.store.memory import ChunkKv, HostMemoryStore
from cachecraft_rag.vllm.forward import SelectiveForward, slots

Positions = npt.NDArray[np.int64]


class Stager:
    """`rotary`: how each layer turns its keys, None for a layer that does not."""

    def __init__(
        self,
        forward: SelectiveForward,
        store: HostMemoryStore,
        rotary: Sequence[RotarySpec | None],
        device: torch.device,
    ) -> None:
        self._forward = forward
        self._store = store
        self._rotary = rotary
        self._device = device

    def stored(self, span: StagedSpan) -> ChunkKv | None:
        """What the store holds of a span; None where it is gone or too short."""
        kv = self._store.get(span.handle)
        return None if kv is None or kv.tokens < span.source_start + span.stop - span.start else kv

    @torch.inference_mode()
    def key(self, span: StagedSpan, layer: int) -> torch.Tensor | None:
        """K of one layer of a span at its place in the prompt, [rows, kv_heads, head_size]; None where it is gone."""
        kv = self.stored(span)
        if kv is None:
            return None
        keys, _ = kv.rows(_rows(span), self._store.dtype, slice(layer, layer + 1))
        key = keys[0].to(self._device, non_blocking=True)
        spec = self._rotary[layer]
        return key if spec is None or span.delta == 0 else rotate(key, spec, span.delta)

    @torch.inference_mode()
    def value(self, span: StagedSpan, layer: int) -> torch.Tensor | None:
        """V of one layer of a span, [rows, kv_heads, head_size]; None where it is gone."""
        kv = self.stored(span)
        if kv is None:
            return None
        _, values = kv.rows(_rows(span), self._store.dtype, slice(layer, layer + 1))
        return values[0].to(self._device, non_blocking=True)

    @torch.inference_mode()
    def write(self, spans: Iterable[StagedSpan], block_ids: Positions, places: Positions | None = None) -> None:
        """Write spans that are `stored` into a request's blocks, at their positions or at `places[position]`."""
        for span in spans:
            kv = self.stored(span)
            assert kv is not None
            positions = np.arange(span.start, span.stop)
            placed = positions if places is None else places[positions]
            slot_mapping = self._forward.to_device(slots(placed, block_ids, self._forward.block_size))
            stored = kv.rows(_rows(span), self._store.dtype)
            key, value = (part.to(self._device, non_blocking=True) for part in stored)
            key = self._turned(key, span.delta)
            for layer in range(len(self._forward.layers)):
                self._forward.write(layer, key[layer], value[layer], slot_mapping)

    def _turned(self, key: torch.Tensor, delta: int) -> torch.Tensor:
        """`key`: [layers, rows, kv_heads, head_size], turned by `delta` positions; the stored tensor is left alone."""
        first = self._rotary[0]
        if delta == 0:
            return key
        if first is not None and all(spec == first for spec in self._rotary):
            return rotate(key, first, delta)
        layers = zip(key, self._rotary, strict=True)
        return torch.stack([layer if spec is None else rotate(layer, spec, delta) for layer, spec in layers])


def _rows(span: StagedSpan) -> slice:
    return slice(span.source_start, span.source_start + span.stop - span.start)
