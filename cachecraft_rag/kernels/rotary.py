"""Move cached keys to other positions by rotating them again.

Rotary position embedding (RoPE, arXiv:2104.09864) turns every pair of a key's dimensions by ``position * inv_freq``.
Two such turns add up, so a key that was computed at position ``p`` becomes the key for ``p + delta`` by one turn of
``delta * inv_freq``, whatever else the model has put into it. A constant magnitude in the model's cos/sin table (YaRN)
is already in the key and stays there, because the turn here has length one.

Rotate from the stored original every time, never from a key that was rotated before, so that rounding happens once. The
keys as they were captured, with their positions, are the best original: taking the turn out first gains nothing, and
costs another rounding unless the result is kept in float32.
"""

from collections.abc import Iterator
from itertools import product

import torch

from cachecraft_rag.kernels.rotary_spec import RotarySpec

# Elements of a block of work. In float32 the two temporaries of a block stay within a few MiB, near the cache.
_CPU_BLOCK_ELEMENTS = 1 << 19
_DEVICE_BLOCK_ELEMENTS = 1 << 24


def rotate(
    key: torch.Tensor,
    spec: RotarySpec,
    delta: int | torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Turn keys by ``delta`` positions, forward or back.

    key: ``[..., tokens, kv_heads, head_size]``, any floating dtype, any strides; leading dimensions share ``delta``.
    delta: whole positions: one number (an ``int`` or a tensor without dimensions) for all tokens, or ``[tokens]``. One
        number is cheaper, and 0 is an exact copy.
    out: where to write, of key's shape and of any floating dtype; may be ``key`` itself, may not overlap it otherwise.
    dtype: dtype of the result; that of ``out``, else that of ``key``, where it is not given.

    Angles are taken in float64, the turn is done in float32 (float64 for float64 keys), and the result is rounded once.
    Only the first ``rotary_dim`` dimensions of each head change. Raises ValueError where shapes or dtypes do not fit.
    """
    target = _target(key, spec, out, dtype)
    with torch.no_grad():
        if isinstance(delta, torch.Tensor):
            _check_delta(delta, key.shape[-3])
        elif delta == 0:
            return target.copy_(key)
        compute = torch.float64 if key.dtype == torch.float64 else torch.float32
        cos, sin = _turns(spec, delta, key.device, compute)
        _rotate_blocks(key, target, spec, cos, sin, compute)
    return target


def unrotate(
    key: torch.Tensor,
    spec: RotarySpec,
    positions: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Take the turn of absolute ``positions`` out of keys, which leaves them as they were before RoPE.

    key: as in :func:`rotate`. positions: whole numbers, ``[tokens]``. The result is float32 (float64 for float64 keys)
    unless ``out`` or ``dtype`` says otherwise; ``rotate(result, spec, positions)`` gives the keys back. A constant
    magnitude of the model's table stays in the result. Raises ValueError where shapes or dtypes do not fit.
    """
    if dtype is None and out is None:
        dtype = torch.float64 if key.dtype == torch.float64 else torch.float32
    if not positions.is_floating_point():
        positions = positions.to(torch.int64)
    return rotate(key, spec, -positions, out=out, dtype=dtype)


def _target(key: torch.Tensor, spec: RotarySpec, out: torch.Tensor | None, dtype: torch.dtype | None) -> torch.Tensor:
    if key.dim() < 3 or key.shape[-1] != spec.head_size or not key.is_floating_point():
        raise ValueError(
            f"key must be floating and [..., tokens, kv_heads, {spec.head_size}], got {key.dtype} {tuple(key.shape)}"
        )
    if out is None:
        dtype = key.dtype if dtype is None else dtype
        if not dtype.is_floating_point:
            raise ValueError(f"dtype must be floating, got {dtype}")
        return torch.empty(key.shape, dtype=dtype, device=key.device)
    if out.shape != key.shape or out.device != key.device or not out.is_floating_point():
        raise ValueError(
            f"out must be floating and {tuple(key.shape)} on {key.device}, got {out.dtype} {tuple(out.shape)} "
            f"on {out.device}"
        )
    if dtype is not None and out.dtype != dtype:
        raise ValueError(f"the dtype of out, {out.dtype}, differs from dtype={dtype}")
    return out


def _check_delta(delta: torch.Tensor, tokens: int) -> None:
    if delta.is_floating_point() or delta.is_complex() or delta.dtype == torch.bool:
        raise ValueError(f"position differences must be whole numbers, got {delta.dtype}")
    if delta.dim() > 1 or (delta.dim() == 1 and delta.shape[0] != tokens):
        raise ValueError(f"position differences must be one number or [{tokens}], got {tuple(delta.shape)}")


def _turns(
    spec: RotarySpec, delta: int | torch.Tensor, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos ``[1 or tokens, 1, rotary_dim]``, laid out like a head, and sin ``[1 or tokens, 1, rotary_dim / 2]``."""
    steps = torch.as_tensor(delta, dtype=torch.int64, device=device).reshape(-1, 1, 1).to(torch.float64)
    angles = steps * spec.inv_freq.to(device)
    half = angles.cos().to(dtype)
    cos = torch.cat((half, half), dim=-1) if spec.is_neox_style else half.repeat_interleave(2, dim=-1)
    return cos, angles.sin().to(dtype)


def _pairs(head: torch.Tensor, is_neox_style: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The two members of every rotated pair, as views of ``[..., rotary_dim]``."""
    if is_neox_style:
        half = head.shape[-1] // 2
        return head[..., :half], head[..., half:]
    return head[..., 0::2], head[..., 1::2]


def _blocks(shape: torch.Size, limit: int) -> Iterator[tuple[tuple[int | slice, ...], slice]]:
    """Cut ``[..., layers, tokens, kv_heads, head_size]`` into pieces of about ``limit`` elements.

    Yields the index of a piece and the range of tokens in it. Whole layers go together where they are small.
    """
    *outer, layers, tokens, kv_heads, head_size = shape
    row = kv_heads * head_size
    token_step = max(1, min(tokens, limit // row))
    layer_step = max(1, limit // (tokens * row)) if token_step == tokens else 1
    for prefix in product(*(range(size) for size in outer)):
        for layer in range(0, layers, layer_step):
            for token in range(0, tokens, token_step):
                piece = slice(token, min(token + token_step, tokens))
                yield (*prefix, slice(layer, min(layer + layer_step, layers)), piece), piece


def _rotate_blocks(
    key: torch.Tensor, out: torch.Tensor, spec: RotarySpec, cos: torch.Tensor, sin: torch.Tensor, dtype: torch.dtype
) -> None:
    if key.numel() == 0:
        return
    if key.dim() == 3:
        key, out = key.unsqueeze(0), out.unsqueeze(0)
    rotary_dim, neox = spec.rotary_dim, spec.is_neox_style
    limit = _CPU_BLOCK_ELEMENTS if key.device.type == "cpu" else _DEVICE_BLOCK_ELEMENTS
    per_token = cos.shape[0] > 1
    buffers: dict[torch.Size, tuple[torch.Tensor, torch.Tensor]] = {}
    for index, tokens in _blocks(key.shape, limit):
        whole, whole_out = key[index], out[index]
        source, target = whole[..., :rotary_dim], whole_out[..., :rotary_dim]
        if source.shape not in buffers:
            buffers[source.shape] = (
                torch.empty(source.shape, dtype=dtype, device=key.device),
                torch.empty(source.shape, dtype=dtype, device=key.device),
            )
        widened, turned = buffers[source.shape]
        if source.dtype != dtype:
            source = widened.copy_(source)
        block_cos, block_sin = (cos[tokens], sin[tokens]) if per_token else (cos, sin)
        torch.mul(source, block_cos, out=turned)
        first, second = _pairs(source, neox)
        turned_first, turned_second = _pairs(turned, neox)
        turned_first.addcmul_(second, block_sin, value=-1)
        turned_second.addcmul_(first, block_sin)
        target.copy_(turned)
        if rotary_dim < spec.head_size:
            whole_out[..., rotary_dim:].copy_(whole[..., rotary_dim:])
