"""Two buffers on each side of the bus: one is filled while the other is on its way or in use.

Pieces are put together in page-locked host memory and copied from there by a stream of their own. So the host goes on
to the next piece, the bus is busy, and the device works on the last piece, all at once. Nothing that is stored need be
page-locked, and what was handed over may be freed at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from cachecraft_rag.store.compression import dequantise
from cachecraft_rag.store.memory import ChunkKv
from cachecraft_rag.store.transfer import Piece, cut

_ALIGNMENT = 256  # of a tensor in a buffer, enough for every dtype


class CopyLane(Protocol):
    """Copies that run beside the computations. A mark stands for all that was begun before it, on one of the two."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> Any:
        """Begin a copy to the device; returns the mark of its end."""

    def wait_for_use(self, mark: Any) -> None:
        """Copies begun from now on wait until that mark of the computations is reached."""

    def used(self) -> Any:
        """The mark of the computations begun so far."""

    def need(self, mark: Any) -> None:
        """Computations begun from now on wait for a copy."""

    def finish(self, mark: Any) -> None:
        """Wait here for the end of a copy."""


class CudaLane:
    """A stream beside the one that is current wherever these are called."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            return self._stream.record_event()

    def wait_for_use(self, mark: torch.cuda.Event) -> None:
        self._stream.wait_event(mark)

    def used(self) -> torch.cuda.Event:
        return torch.cuda.current_stream(self._device).record_event()

    def need(self, mark: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(mark)

    def finish(self, mark: torch.cuda.Event) -> None:
        mark.synchronize()


@dataclass(slots=True, eq=False)
class Slot:
    """A pair of buffers, [bytes] uint8 of one size. `copied`: mark of the last copy, `used`: of its last use."""

    host: torch.Tensor
    device: torch.Tensor
    copied: Any = None
    used: Any = None


class RingTransfer:
    """See `Transfer`. What is compressed is copied as it is, and unpacked on the device.

    `dtype`: of the model's KV; `slots`: used in turn.
    """

    def __init__(self, slots: Sequence[Slot], dtype: torch.dtype, lane: CopyLane) -> None:
        self._slots = itertools.cycle(slots)
        self._bytes = min(slot.host.numel() for slot in slots)
        self._dtype = dtype
        self._lane = lane

    def pieces(self, kv: ChunkKv, rows: slice) -> Iterator[Piece]:
        layers, _, _, kv_heads, head_size = kv.data.shape
        row_bytes = 2 * kv_heads * head_size * kv.data.element_size()
        scale_bytes = 0 if kv.scales is None else kv.scales[0].nbytes
        for some, part in cut(layers, rows.stop - rows.start, row_bytes, self._bytes - _ALIGNMENT, scale_bytes):
            stored = [kv.data[some, :, rows.start + part.start : rows.start + part.stop]]
            if kv.scales is not None:
                stored.append(kv.scales[some])
            slot = next(self._slots)
            data, *scales = self._send(slot, stored)
            try:
                if scales:
                    data = dequantise(data, scales[0], self._dtype)
                yield Piece(some, part, data[:, 0], data[:, 1])
            finally:
                slot.used = self._lane.used()

    def _send(self, slot: Slot, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Tensors of host memory as they are on the device, for computations begun from now on."""
        if slot.copied is not None:
            self._lane.finish(slot.copied)  # before its host side is written
        arrived, end = [], 0
        for tensor in tensors:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + tensor.nbytes
            _view(slot.host[start:end], tensor).copy_(tensor)
            arrived.append(_view(slot.device[start:end], tensor))
        if slot.used is not None:
            self._lane.wait_for_use(slot.used)  # before its device side is written
        slot.copied = self._lane.copy(slot.device[:end], slot.host[:end])
        self._lane.need(slot.copied)
        return arrived


def _view(memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return memory.view(like.dtype).view(like.shape)
