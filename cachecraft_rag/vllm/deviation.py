"""How far stored V is from V in the new context, computed at an early layer (CacheBlend's measure)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from cachecraft_rag.reuse import StagedSpan
from cachecraft_rag.vllm.capture import Watch
from cachecraft_rag.vllm.forward import SelectiveForward, SlicePart
from cachecraft_rag.vllm.protocol import PlanMessage
from cachecraft_rag.vllm.versions import tensor_parallel_mean

LAYER = 1  # the first one whose K and V depend on what stands in front of a token; the forward ends in it

ValueOf = Callable[[StagedSpan, int], torch.Tensor | None]


def layers_run_for_deviation(layers: int) -> int:
    """How many layers are begun for the rows, of so many."""
    return min(LAYER + 1, layers)


def value_deviation(
    forward: SelectiveForward, message: PlanMessage, value_of: ValueOf, max_rows: int
) -> npt.NDArray[np.float64]:
    """Squared distance of stored V from the V that the model computes in this prompt, at one layer, shape [plan.end].

    All staged spans must be in the request's blocks, at their positions. `value_of(span, layer)`: stored V,
    [rows, kv_heads, head_size]; None where its tensors are gone. `max_rows`: of one forward. 0 for what is not stored.
    """
    plan = message.plan
    assert plan.pending is not None
    rows = plan.pending.deviation_rows
    layer = min(LAYER, len(forward.layers) - 1)
    pieces = []
    for start in range(0, rows.size, max_rows):
        positions = rows[start : start + max_rows]
        with forward.recorder.watching(Watch(values_of=frozenset((layer,)), ends=True)) as watch:
            forward.run([SlicePart(positions, message.token_ids[positions], message.block_ids)])
        pieces.append(watch.values[layer])
    computed = torch.cat(pieces)
    deviation = torch.zeros(plan.end, dtype=torch.float64)
    for span in plan.pending.keys:
        stored = value_of(span, layer)
        first, stop = np.searchsorted(rows, (span.start, span.stop))
        if stored is None or first == stop:
            continue
        own = torch.from_numpy(rows[first:stop])
        difference = computed[int(first) : int(stop)].float() - stored[(own - span.start).to(stored.device)].float()
        deviation[own] = difference.square().sum(dim=(1, 2)).double().cpu()
    return tensor_parallel_mean(deviation).numpy()
