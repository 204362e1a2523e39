"""Stored KV in 8 bits: integers with one scale for each layer, head and channel, over the tokens of a chunk.

K and V have channels that are much larger than the others, the same for all tokens, so a scale per channel loses less
than one per token.
"""

from __future__ import annotations

import torch

_LARGEST = 127


def quantise(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`data`: [layers, 2, tokens, kv_heads, head_size]; int8 of the same shape, and float32 scales of one token."""
    scales = data.abs().amax(dim=2, keepdim=True).float() / _LARGEST
    scales = torch.where(scales == 0, torch.ones_like(scales), scales)
    return (data.float() / scales).round_().to(torch.int8), scales


def dequantise(data: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Back to numbers, off by half a scale at most; `scales` must broadcast over `data`."""
    return (data.float() * scales).to(dtype)
