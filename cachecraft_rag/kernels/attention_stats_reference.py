"""Attention mass in the plainest form: the full softmax, in float64."""

from itertools import pairwise

import torch


def attention_mass_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    scale: float,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
    segment_offsets: list[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """``per_key [keys]`` and ``per_row_segment [rows, segments]``; arguments as in ``attention_mass``."""
    repeats = query.shape[1] // key.shape[1]
    keys = key.to(torch.float64).repeat_interleave(repeats, dim=1)
    logits = torch.einsum("rhd,khd->hrk", query.to(torch.float64), keys) * scale
    hidden = key_positions[None, :] > query_positions[:, None]
    share = torch.softmax(logits.masked_fill(hidden, -torch.inf), dim=-1).nan_to_num(0.0).mean(dim=0)
    per_segment = [share[:, a:b].sum(dim=1) for a, b in pairwise(segment_offsets)]
    return share.sum(dim=0), torch.stack(per_segment, dim=1)
