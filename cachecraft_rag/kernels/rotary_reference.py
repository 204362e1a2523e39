"""Re-rotation in the plainest form: every pair is a complex number, a turn is a multiplication, all in float64."""

import torch

from cachecraft_rag.kernels.rotary_spec import RotarySpec


def rotate_reference(key: torch.Tensor, spec: RotarySpec, delta: torch.Tensor) -> torch.Tensor:
    """key ``[..., tokens, kv_heads, head_size]`` turned by ``delta``, one number or ``[tokens]``; float64."""
    turned = key.to(torch.float64).clone()
    half = spec.rotary_dim // 2
    first = torch.arange(half) if spec.is_neox_style else torch.arange(0, spec.rotary_dim, 2)
    second = first + (half if spec.is_neox_style else 1)
    numbers = torch.complex(turned[..., first], turned[..., second])
    angles = delta.to(torch.float64).reshape(-1, 1, 1) * spec.inv_freq
    numbers = numbers * torch.polar(torch.ones_like(angles), angles)
    turned[..., first] = numbers.real
    turned[..., second] = numbers.imag
    return turned
