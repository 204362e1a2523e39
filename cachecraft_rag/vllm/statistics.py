"""Attention statistics of variants, measured while they are computed: from captured queries and keys."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from cachecraft_rag.kernels.attention_stats import attention_mass
from cachecraft_rag.reuse import CaptureSpan
from cachecraft_rag.store.seen import AttentionStatistics
from cachecraft_rag.vllm.capture import Watch
from cachecraft_rag.vllm.forward import SelectiveForward
from cachecraft_rag.vllm.versions import tensor_parallel_mean

STEP = 4  # every fourth layer is looked at: all of them would cost as much again as the model's own attention


def measured_layers(layers: int) -> frozenset[int]:
    """Indices of the layers that are looked at, of so many."""
    return frozenset(range(min(1, layers - 1), layers, STEP))


class StatisticsMeter:
    """Of one plan that computes its whole prompt from position 0 on, slice by slice.

    `captures`: those with `pieces`, which tile what is in front of them behind the head; the last one's hold all the
    others. `end`: of the plan.
    """

    def __init__(self, forward: SelectiveForward, captures: Sequence[CaptureSpan], end: int) -> None:
        self._forward = forward
        self._captures = sorted(captures, key=lambda span: span.start)
        last = self._captures[-1]
        self._edges = np.array([0, *(start for start, _ in last.pieces), last.start, last.stop])
        self._end = end
        self._layers = measured_layers(len(forward.layers))
        self._keys: dict[int, torch.Tensor] = {}
        self._sums = {span: _Sums(span) for span in self._captures}

    def see(self, watch: Watch, rows: slice, positions: npt.NDArray[np.int64]) -> None:
        """Take in a slice: `rows` of what was watched are those of `positions` of the plan's prompt."""
        stop = min(int(positions[-1]) + 1, int(self._edges[-1]))
        edges = np.minimum(self._edges, stop).tolist()
        placed = self._forward.to_device(positions)
        key_positions = torch.arange(stop, device=placed.device)
        measured = slice(*np.searchsorted(positions, (self._captures[0].start, self._edges[-1])).tolist())
        for layer in self._layers:
            key = watch.keys[layer][rows]
            held = self._keys.setdefault(layer, key.new_zeros((self._end, *key.shape[1:])))
            held[placed] = key
            mass = attention_mass(
                watch.queries[layer][rows][measured],
                held[:stop],
                self._forward.layers[layer].impl.scale,
                placed[measured],
                key_positions,
                edges,
            )
            for sums in self._sums.values():
                sums.add(positions[measured], mass.per_row_segment)

    def results(self) -> dict[int, AttentionStatistics]:
        """By handle, once all of the plan was seen."""
        return {span.handle: sums.statistics(len(self._layers)) for span, sums in self._sums.items()}


class _Sums:
    """Sums over layers. Column 0 is the head, the pieces in front follow, then the chunk itself."""

    def __init__(self, span: CaptureSpan) -> None:
        self._span = span
        self._pieces = len(span.pieces)
        self._table = torch.zeros(span.stop - span.start, self._pieces + 2, dtype=torch.float64)

    def add(self, positions: npt.NDArray[np.int64], mass: torch.Tensor) -> None:
        """`mass`: [positions, segments], of which those behind the chunk are zero for its tokens."""
        first, last = np.searchsorted(positions, (self._span.start, self._span.stop))
        tokens = torch.from_numpy(positions[first:last] - self._span.start)
        self._table[tokens] += mass[int(first) : int(last), : self._pieces + 2].double().cpu()

    def statistics(self, layers: int) -> AttentionStatistics:
        table = (tensor_parallel_mean(self._table) / layers).numpy().astype(np.float32)
        in_front = table[:, 1 : self._pieces + 1]
        return AttentionStatistics(in_front.sum(axis=0), float(table[:, -1].sum()), in_front.sum(axis=1))
