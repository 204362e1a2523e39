"""The question's attention: its rows, run once over the reused KV alone, rank the tokens that are recomputed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from cachecraft_rag.kernels.attention_stats import attention_mass
from cachecraft_rag.reuse import Plan, StagedSpan
from cachecraft_rag.vllm.capture import Watch
from cachecraft_rag.vllm.forward import SelectiveForward, SlicePart
from cachecraft_rag.vllm.protocol import PlanMessage
from cachecraft_rag.vllm.versions import tensor_parallel_mean

# Which of the model's layers are looked at, as shares of their number; later ones are not run. docs/decisions/0005 has
# what was measured.
LAYERS = (1 / 8, 3 / 8)
RANKING_ROWS = 16  # the last ones; those before them run to give them their context

Places = npt.NDArray[np.int64]
KeyOf = Callable[[StagedSpan, int], torch.Tensor | None]


def looked_at_layers(layers: int) -> frozenset[int]:
    """Indices of the layers, of so many, whose attention is looked at; the last of them is the last that runs."""
    first, stop = (round(share * layers) for share in LAYERS)
    return frozenset(range(first, max(stop, first + 1)))


def layers_run_for_question(layers: int) -> int:
    """How many layers run for the question's rows, of so many."""
    return max(looked_at_layers(layers)) + 1


def compact_places(plan: Plan, staged: Sequence[StagedSpan]) -> Places | None:
    """Where in the request's blocks each position goes for the pass, so that no gap is left between them.

    What is not stored (a missed chunk, text between chunks) has no KV yet, and a row attends to all places before its
    own. Shape [plan.end], -1 for positions that take no part; None where nothing lies between and all keep their place,
    or where no question is looked at. Places below `num_computed_tokens` belong to vLLM's prefix cache and are never
    written.
    """
    assert plan.pending is not None
    if plan.pending.question_rows.size == 0:
        return None
    takes_part = np.zeros(plan.end, dtype=bool)
    takes_part[: plan.num_computed_tokens] = True
    for span in staged:
        takes_part[span.start : span.stop] = True
    takes_part[plan.pending.question_rows] = True
    if takes_part[: plan.pending.question_rows[-1] + 1].all():
        return None
    return np.where(takes_part, np.cumsum(takes_part) - 1, -1)


def question_attention(
    forward: SelectiveForward, message: PlanMessage, key_of: KeyOf, places: Places | None
) -> npt.NDArray[np.float64]:
    """The attention of the question's last rows on every position, summed over some layers, shape [plan.end].

    All staged spans must be in the request's blocks, at `places`. `key_of(span, layer)`: K of a stored span, rotated to
    its place in the prompt, [rows, kv_heads, head_size]; None where its tensors are gone. The softmax is over those
    keys alone: only the ranking of the tokens is used.
    """
    plan = message.plan
    assert plan.pending is not None
    rows = plan.pending.question_rows
    part = SlicePart(rows, message.token_ids[rows], message.block_ids, None if places is None else places[rows])
    with forward.recorder.watching(Watch(queries_of=looked_at_layers(len(forward.layers)), ends=True)) as watch:
        forward.run([part])
    spans = plan.pending.keys
    attention = np.zeros(plan.end, dtype=np.float64)
    if not spans:
        return attention
    positions = np.concatenate([np.arange(span.start, span.stop) for span in spans])
    row_positions, key_positions = forward.to_device(rows[-RANKING_ROWS:]), forward.to_device(positions)
    total = torch.zeros(positions.size, dtype=torch.float64)
    for layer, query in watch.queries.items():
        pieces = [piece for span in spans if (piece := key_of(span, layer)) is not None]
        mass = attention_mass(
            query[-RANKING_ROWS:],
            torch.cat(pieces),
            forward.layers[layer].impl.scale,
            row_positions,
            key_positions,
            [0, positions.size],
        )
        total += mass.per_key.cpu()
    inside = positions < plan.end
    attention[positions[inside]] = tensor_parallel_mean(total).numpy()[inside]
    return attention
