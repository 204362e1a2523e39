"""Stored KV in 8 bits: small numbers with one scale for each layer, head and channel, over the tokens of a chunk.

K and V have channels that are much larger than the others, the same for all tokens, so a scale per channel loses less
than one per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class NumberFormat:
    """`largest`: what the largest number of a channel is stored as."""

    dtype: torch.dtype
    largest: float


FORMATS = {
    "int8": NumberFormat(torch.int8, 127.0),  # steps of one size: off by half a scale at most
    # e4m3 (OCP OFP8, as in safetensors' F8_E4M3): off by a sixteenth, and among small ones by 2^-10 of a scale.
    "fp8": NumberFormat(torch.float8_e4m3fn, 448.0),
}


def quantise(data: torch.Tensor, form: NumberFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """`data`: [layers, 2, tokens, kv_heads, head_size]; its shape in 8 bits, and float32 scales of one token."""
    scales = data.abs().amax(dim=2, keepdim=True).float() / form.largest
    # A channel of nothing, or of numbers so small that their scale could not be told, is stored as it is.
    scales = torch.where(scales < torch.finfo(torch.float32).tiny, torch.ones_like(scales), scales)
    small = data.float() / scales
    return (small if form.dtype.is_floating_point else small.round_()).to(form.dtype), scales


def dequantise(data: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Back to numbers; `scales` must broadcast over `data`."""
    return (data.float() * scales).to(dtype)
