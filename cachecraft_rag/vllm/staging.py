"""Staging: the cached K and V of chunks, turned to their new positions and written into a request's blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from cachecraft_rag.kernels import RotarySpec, rotate
from cachecraft_rag.reuse import Plan, StagedSpan
from cachecraft_rag.store.device import DeviceTier
from cachecraft_rag.store.memory import ChunkKv, HostMemoryStore
from cachecraft_rag.store.transfer import Piece, Transfer
from cachecraft_rag.vllm.forward import SelectiveForward, slots

Positions = npt.NDArray[np.int64]


class Stager:
    """`rotary`: how each layer turns its keys, None for a layer that does not; `tier`: copies that are read first."""

    def __init__(
        self,
        forward: SelectiveForward,
        store: HostMemoryStore,
        rotary: Sequence[RotarySpec | None],
        device: torch.device,
        transfer: Transfer,
        tier: DeviceTier | None = None,
    ) -> None:
        self._forward = forward
        self._store = store
        self._rotary = rotary
        self._device = device
        self._transfer = transfer
        self._tier = tier

    def stored(self, span: StagedSpan) -> ChunkKv | None:
        """What the store holds of a span; None where it is gone or too short."""
        kv = self._store.get(span.handle)
        return None if kv is None or kv.tokens < span.source_start + span.stop - span.start else kv

    def note_uses(self, spans: Iterable[StagedSpan], plan: Plan, namespace: str) -> None:
        """Spans that are `stored` will be staged: their copies on the device count it, or are made if worth it."""
        for span in spans if self._tier is not None else ():
            kv = self.stored(span)
            assert kv is not None
            assert self._tier is not None
            self._tier.use(span.handle, kv, namespace, plan.computed_share(span.start, span.stop))

    @torch.inference_mode()
    def key(self, span: StagedSpan, layer: int) -> torch.Tensor | None:
        """K of one layer of a span at its place in the prompt, [rows, kv_heads, head_size]; None where it is gone."""
        key = self._read(span, layer, 0)
        spec = self._rotary[layer]
        return key if key is None or spec is None or span.delta == 0 else rotate(key, spec, span.delta)

    @torch.inference_mode()
    def value(self, span: StagedSpan, layer: int) -> torch.Tensor | None:
        """V of one layer of a span, [rows, kv_heads, head_size]; None where it is gone."""
        return self._read(span, layer, 1)

    @torch.inference_mode()
    def write(self, spans: Iterable[StagedSpan], block_ids: Positions, places: Positions | None = None) -> None:
        """Write spans that are `stored` into a request's blocks, at their positions or at `places[position]`."""
        for span in spans:
            kv = self.stored(span)
            assert kv is not None
            positions = np.arange(span.start, span.stop)
            placed = positions if places is None else places[positions]
            slot_mapping = self._forward.to_device(slots(placed, block_ids, self._forward.block_size))
            for piece in self._pieces(span, kv):
                turned = _turned(piece.key, self._rotary[piece.layers], span.delta)
                for number, (key, value) in enumerate(zip(turned, piece.value, strict=True), piece.layers.start):
                    self._forward.write(number, key, value, slot_mapping[piece.rows])

    def _read(self, span: StagedSpan, layer: int, half: int) -> torch.Tensor | None:
        """K (0) or V (1) of one layer, as it was computed."""
        kv = self.stored(span)
        if kv is None:
            return None
        copied = self._tier.layer(span.handle, _rows(span), layer, half) if self._tier is not None else None
        if copied is not None:
            return copied
        return kv.rows(_rows(span), self._store.dtype, slice(layer, layer + 1))[half][0].to(self._device)

    def _pieces(self, span: StagedSpan, kv: ChunkKv) -> Iterator[Piece]:
        copied = self._tier.pieces(span.handle, _rows(span)) if self._tier is not None else None
        return copied if copied is not None else self._transfer.pieces(kv, _rows(span))


def _turned(key: torch.Tensor, specs: Sequence[RotarySpec | None], delta: int) -> torch.Tensor:
    """`key`: [layers, rows, kv_heads, head_size], turned by `delta` positions; the stored tensor is left alone."""
    first = specs[0]
    if delta == 0:
        return key
    if first is not None and all(spec == first for spec in specs):
        return rotate(key, first, delta)
    layers = zip(key, specs, strict=True)
    return torch.stack([layer if spec is None else rotate(layer, spec, delta) for layer, spec in layers])


def _rows(span: StagedSpan) -> slice:
    return slice(span.source_start, span.source_start + span.stop - span.start)
