"""What a model's rotary module does to keys, read from vLLM's own module and compared with its table."""

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import torch

_VLLM_ROTARY = "vllm.model_executor.layers.rotary_embedding."
# Classes whose cos/sin rows are `magnitude * cis(position * inv_freq)` with frequencies that never change: the only
# ones for which a turn by the position difference is exact. Subclasses are not trusted.
_PROVEN = {
    _VLLM_ROTARY + "base.RotaryEmbedding",
    _VLLM_ROTARY + "linear_scaling_rope.LinearScalingRotaryEmbedding",
    _VLLM_ROTARY + "llama3_rope.Llama3RotaryEmbedding",
    _VLLM_ROTARY + "ntk_scaling_rope.NTKScalingRotaryEmbedding",
    _VLLM_ROTARY + "yarn_scaling_rope.YaRNScalingRotaryEmbedding",
}
_CHECKED_POSITIONS = (0, 1, 2, 3, 17, 128, 1023, 4096, 32767)


class UnsupportedRotary(ValueError):  # noqa: N818 - says what it is
    """The model's rotary module is not one for which rotation by a position difference is proven."""


@dataclass(frozen=True, eq=False)
class RotarySpec:
    """The turn that one position step means, for each pair of a head's dimensions.

    rotary_dim: leading dimensions of each head that are turned; even, at most ``head_size``.
    is_neox_style: True pairs dimension ``i`` with ``i + rotary_dim / 2``; False pairs ``2i`` with ``2i + 1``.
    inv_freq: ``[rotary_dim / 2]``, radians per position; kept as a private float64 copy in host memory.

    Two specs are equal, and hash alike, when their fingerprints are.
    """

    rotary_dim: int
    head_size: int
    is_neox_style: bool
    inv_freq: torch.Tensor

    def __post_init__(self) -> None:
        if self.rotary_dim <= 0 or self.rotary_dim % 2 or self.rotary_dim > self.head_size:
            raise ValueError(
                f"rotary_dim must be even and in 2..head_size, got rotary_dim={self.rotary_dim}, "
                f"head_size={self.head_size}"
            )
        expected = (self.rotary_dim // 2,)
        if tuple(self.inv_freq.shape) != expected or not self.inv_freq.is_floating_point():
            raise ValueError(
                f"inv_freq must be a floating tensor of shape {expected}, got {self.inv_freq.dtype} "
                f"{tuple(self.inv_freq.shape)}"
            )
        inv_freq = self.inv_freq.detach().to(device="cpu", dtype=torch.float64, copy=True)
        if not bool(torch.isfinite(inv_freq).all()):
            raise ValueError("inv_freq holds a value that is not finite")
        object.__setattr__(self, "inv_freq", inv_freq)

    @classmethod
    def from_module(cls, rotary_emb: torch.nn.Module) -> "RotarySpec":
        """Read the spec from a vLLM rotary module and compare it with the module's own cos/sin table.

        Raises UnsupportedRotary for a class that is not proven, and where the table says something else than the
        frequencies.
        """
        name = _qualified_name(rotary_emb)
        if name not in _PROVEN:
            raise UnsupportedRotary(f"{name} is not supported: {_refusal(name)}.")
        module: Any = rotary_emb
        inv_freq, magnitude = _frequencies(module, name)
        spec = cls(int(module.rotary_dim), int(module.head_size), bool(module.is_neox_style), inv_freq)
        _check_table(spec, magnitude, module.cos_sin_cache, name)
        return spec

    def fingerprint(self) -> str:
        """sha256, in hexadecimal, over all fields; the same on every machine of either byte order."""
        head = f"rotary1 {self.rotary_dim} {self.head_size} {int(self.is_neox_style)} "
        values = " ".join(float(value).hex() for value in self.inv_freq)
        return hashlib.sha256((head + values).encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RotarySpec) and self.fingerprint() == other.fingerprint()

    def __hash__(self) -> int:
        return hash(self.fingerprint())


def _qualified_name(module: torch.nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _refusal(name: str) -> str:
    kind = name.rsplit(".", 1)[-1]
    if "MRotary" in kind or "_VL" in kind or "Vision" in kind:
        return (
            "its tokens have several positions (M-RoPE or vision), so one position difference does not describe a move"
        )
    if "DynamicNTK" in kind:
        return "its frequencies are defined by the length (dynamic NTK)"
    if "LongRoPE" in kind:
        return "its frequencies depend on the longest sequence that is served (LongRoPE)"
    if "DualChunk" in kind:
        return "it keeps positions modulo a chunk (dual chunk attention)"
    if "Fourier" in kind:
        return "its tables are learned and are not rotations (FoPE)"
    return "rotation by a position difference is not proven for this class"


def _frequencies(module: Any, name: str) -> tuple[torch.Tensor, float]:
    """The module's inverse frequencies, and the factor on its cos/sin table, as vLLM 0.32 makes them."""
    with torch.device("cpu"), torch.no_grad():
        if name.endswith(".YaRNScalingRotaryEmbedding"):
            return module._compute_inv_freq(module.scaling_factor), float(module.mscale)
        inv_freq: torch.Tensor = module._compute_inv_freq(module.base)
        if name.endswith(".LinearScalingRotaryEmbedding"):
            if len(module.scaling_factors) != 1:
                raise UnsupportedRotary(
                    f"{name} is not supported with {len(module.scaling_factors)} scaling factors: "
                    "a key's positions would not say which one it was made with."
                )
            inv_freq = inv_freq.to(torch.float64) / float(module.scaling_factors[0])
    return inv_freq, 1.0


def _check_table(spec: RotarySpec, magnitude: float, table: torch.Tensor, name: str) -> None:
    """Compare ``magnitude * cis(position * inv_freq)`` with rows of vLLM's table, ``[positions, cos | sin]``.

    The table holds angles that were rounded to float32 (and frequencies, that a device may round a little differently),
    then values that were rounded to the table's dtype.
    """
    if table.dim() != 2 or table.shape[1] != spec.rotary_dim:
        raise UnsupportedRotary(
            f"{name} is not supported: its cos/sin table is {tuple(table.shape)}, not [positions, {spec.rotary_dim}]."
        )
    length = table.shape[0]
    positions = torch.tensor(sorted({p for p in _CHECKED_POSITIONS if p < length} | {length // 2, length - 1}))
    rows = table.detach()[positions.to(table.device)].to(device="cpu", dtype=torch.float64)
    angles = positions.to(torch.float64)[:, None] * spec.inv_freq
    expected = torch.cat((angles.cos(), angles.sin()), dim=-1) * magnitude
    rounding = torch.finfo(table.dtype).eps + 8 * torch.finfo(torch.float32).eps
    allowed = abs(magnitude) * (rounding + torch.cat((angles, angles), dim=-1).abs() * math.ldexp(1.0, -21))
    excess = (rows - expected).abs() - allowed
    worst = int(excess.max(dim=-1).values.argmax())
    if not bool((excess <= 0).all()):
        raise UnsupportedRotary(
            f"{name} is not supported: its cos/sin table differs from its frequencies by "
            f"{float((rows - expected).abs()[worst].max()):.3g} at position {int(positions[worst])}."
        )
