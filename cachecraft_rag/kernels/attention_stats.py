"""How much attention rows pay to keys and to the segments of a prompt.

Keys and queries are those the model attends with: after RoPE, at the positions of the same prompt. The softmax is the
plain causal one, without sliding window, soft cap or sink logits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

_MAX_SCORES = 1 << 20
_FEWEST_ROWS = 16


@dataclass(frozen=True)
class AttentionMass:
    """Softmax probability, averaged over the query heads that were given. float32, or float64 for float64 queries.

    per_key: ``[keys]``, summed over rows.
    per_row_segment: ``[rows, segments]``. A row that sees a key sums to 1, one that sees none is zero.
    """

    per_key: torch.Tensor
    per_row_segment: torch.Tensor

    @property
    def per_segment(self) -> torch.Tensor:
        """``[segments]``, summed over rows."""
        return self.per_row_segment.sum(dim=0)


@dataclass(frozen=True)
class SegmentAttention:
    """Attention between the segments of a prompt, summed over rows and averaged over query heads.

    between: ``[segments, segments]``, of the rows in the first index's segment on the keys in the second's: the sums
        ``inter(Ci, Cj)`` of Cache-Craft (arXiv:2502.15734), and ``intra(Ci)`` on the diagonal.
    on_context: ``[rows]``, of each row on keys that are neither in its own segment nor in segment 0, the head of the
        prompt. Large values mark the tokens that depend most on the chunks before them.
    """

    between: torch.Tensor
    on_context: torch.Tensor


def attention_mass(
    query: torch.Tensor,
    key: torch.Tensor,
    scale: float,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    segment_offsets: Sequence[int] | torch.Tensor,
    *,
    max_scores: int = _MAX_SCORES,
) -> AttentionMass:
    """Softmax probability of ``scale * query . key`` over the keys at or before each row's position.

    query: ``[rows, heads, head_size]``, floating. key: ``[keys, kv_heads, head_size]``; query head ``h`` reads key head
        ``h // (heads / kv_heads)``.
    query_positions: ``[rows]``, key_positions: ``[keys]``, whole numbers in any order.
    segment_offsets: ``[segments + 1]``, rising from 0 to ``keys``; segment ``s`` is keys ``offsets[s]`` to
        ``offsets[s + 1]``, and may be empty.
    max_scores: most scores (rows x keys x heads) in memory at once, but never less than one row by one key.

    Computed in float32, or float64 where query is float64, with every row's maximum taken out before the exponential.
    Raises ValueError where shapes do not fit.
    """
    offsets = [int(offset) for offset in segment_offsets]
    _check(query, key, query_positions, key_positions, offsets, max_scores)
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    per_key = torch.zeros(key.shape[0], dtype=dtype, device=query.device)
    per_row = torch.zeros(query.shape[0], len(offsets) - 1, dtype=dtype, device=query.device)
    if query.shape[0] == 0 or key.shape[0] == 0:
        return AttentionMass(per_key, per_row)
    with torch.no_grad():
        keys = key.to(dtype).permute(1, 2, 0)
        row_step, key_step = _piece(query.shape[0], key.shape[0], query.shape[1], max_scores)
        for start in range(0, query.shape[0], row_step):
            rows = slice(start, start + row_step)
            scaled = query[rows].to(dtype) * scale
            for columns, share in _shares(scaled, query_positions[rows], keys, key_positions, key_step):
                per_key[columns] += share.sum(dim=0)
                for segment, begin, end in _overlaps(offsets, columns):
                    per_row[rows, segment] += share[:, begin:end].sum(dim=1)
    return AttentionMass(per_key, per_row)


def segment_attention(mass: AttentionMass, row_segments: torch.Tensor) -> SegmentAttention:
    """Group the mass of rows by the segments that the rows belong to.

    row_segments: ``[rows]``, whole numbers: the segment of each row, or -1 for a row outside all segments, which counts
    in no row of ``between``. Raises ValueError where it does not fit ``mass``.
    """
    rows, segments = mass.per_row_segment.shape
    if row_segments.shape != (rows,):
        raise ValueError(f"row_segments must be [{rows}], got {tuple(row_segments.shape)}")
    own = row_segments.to(device=mass.per_row_segment.device, dtype=torch.int64)
    if rows and (int(own.min()) < -1 or int(own.max()) >= segments):
        raise ValueError(f"row_segments must be in -1..{segments - 1}, got {int(own.min())}..{int(own.max())}")
    between = mass.per_row_segment.new_zeros(segments, segments)
    inside = own >= 0
    between.index_add_(0, own[inside], mass.per_row_segment[inside])
    context = torch.arange(segments, device=own.device)[None, :] != own[:, None]
    context[:, :1] = False
    return SegmentAttention(between, (mass.per_row_segment * context).sum(dim=1))


def _shares(
    query: torch.Tensor,
    query_positions: torch.Tensor,
    keys: torch.Tensor,
    key_positions: torch.Tensor,
    key_step: int,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """A few rows against all keys ``[kv_heads, head_size, keys]``: pieces of keys, and ``[rows, piece]`` probabilities.

    The first pass finds each row's maximum and sum, the second divides by them; a single piece is scored only once.
    """
    rows, heads, head_size = query.shape
    kv_heads = keys.shape[0]
    query = (
        query.view(rows, kv_heads, heads // kv_heads, head_size).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_size)
    )
    earliest = int(query_positions.min())

    def scores(columns: slice) -> torch.Tensor:
        scored = torch.bmm(query, keys[:, :, columns]).view(heads, rows, -1)
        positions = key_positions[columns]
        late = (positions > earliest).nonzero()
        if len(late):
            # Where keys are in order only the last few can be hidden from a row: masking all is as dear as the exp.
            first = int(late[0])
            hidden = positions[first:][None, :] > query_positions[:, None]
            scored[:, :, first:].masked_fill_(hidden, -torch.inf)
        return scored

    seen = (key_positions <= query_positions.max()).nonzero()
    end = int(seen[-1]) + 1 if len(seen) else 0
    pieces = [slice(at, min(at + key_step, end)) for at in range(0, end, key_step)]
    # The lowest finite number, not minus infinity: a row that sees no key then gets zeros, and never inf - inf.
    highest = query.new_full((heads, rows, 1), torch.finfo(query.dtype).min)
    total = query.new_zeros((heads, rows, 1))
    weights = query
    for columns in pieces:
        scored = scores(columns)
        raised = torch.maximum(highest, scored.amax(dim=-1, keepdim=True))
        weights = scored.sub_(raised).exp_()
        total = total * (highest - raised).exp() + weights.sum(dim=-1, keepdim=True)
        highest = raised
    norm = heads * total.clamp_min(torch.finfo(total.dtype).tiny)
    for columns in pieces:
        if len(pieces) > 1:
            weights = scores(columns).sub_(highest).exp_()
        yield columns, weights.div_(norm).sum(dim=0)


def _piece(rows: int, keys: int, heads: int, max_scores: int) -> tuple[int, int]:
    """Rows and keys of one piece of work: all keys where that leaves enough rows for an efficient product."""
    fewest = max(1, min(rows, _FEWEST_ROWS, max_scores // heads))
    if fewest * keys * heads <= max_scores:
        return min(rows, max_scores // (keys * heads)), keys
    return fewest, max(1, max_scores // (fewest * heads))


def _overlaps(offsets: list[int], columns: slice) -> Iterator[tuple[int, int, int]]:
    """Segments that have keys in ``columns``, with the range of those keys counted from its start."""
    for segment, (begin, end) in enumerate(pairwise(offsets)):
        begin, end = max(begin, columns.start), min(end, columns.stop)
        if begin < end:
            yield segment, begin - columns.start, end - columns.start


def _check(
    query: torch.Tensor,
    key: torch.Tensor,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    offsets: list[int],
    max_scores: int,
) -> None:
    if query.dim() != 3 or key.dim() != 3 or query.shape[2] != key.shape[2]:
        raise ValueError(
            f"query and key must be [rows, heads, head_size] and [keys, kv_heads, head_size], got "
            f"{tuple(query.shape)} and {tuple(key.shape)}"
        )
    if key.shape[1] == 0 or query.shape[1] == 0 or query.shape[1] % key.shape[1]:
        raise ValueError(f"query heads must be a multiple of key heads, got {query.shape[1]} and {key.shape[1]}")
    if not query.is_floating_point() or not key.is_floating_point():
        raise ValueError(f"query and key must be floating, got {query.dtype} and {key.dtype}")
    if query_positions.shape != (query.shape[0],) or key_positions.shape != (key.shape[0],):
        raise ValueError(
            f"positions must be [{query.shape[0]}] for query and [{key.shape[0]}] for key, got "
            f"{tuple(query_positions.shape)} and {tuple(key_positions.shape)}"
        )
    if len(offsets) < 2 or offsets[0] != 0 or offsets[-1] != key.shape[0] or offsets != sorted(offsets):
        raise ValueError(f"segment_offsets must rise from 0 to {key.shape[0]}, the number of keys, got {offsets}")
    if max_scores < 1:
        raise ValueError(f"max_scores must be at least 1, got {max_scores}")
