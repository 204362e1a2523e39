"""Memory on the device for copies of chunks and for their way there, taken behind the weights, where vLLM sees it.

vLLM sizes its paged cache by what is free before the weights are loaded and after a trial run: what a worker holds by
then is left out of it. Where the size of the paged cache is given, nothing is measured, and both must fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.store.device import DeviceTier
from cachecraft_rag.store.eviction import get_eviction
from cachecraft_rag.store.ring import CudaLane, RingTransfer, Slot
from cachecraft_rag.store.transfer import PIECE_BYTES, DirectTransfer, Transfer
from cachecraft_rag.vllm.settings import ConnectorSettings

_GIB = 1 << 30
_SLOTS = 2


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """`copies`: for the tier, [bytes] uint8, None for none; `slots`: of the ring to a CUDA device, none for others."""

    copies: torch.Tensor | None
    slots: tuple[Slot, ...]


def reserve(worker: Any) -> DeviceMemory:
    """All that we take on the device of a worker that has loaded its weights.

    Raises `InvalidInput` where copies leave nothing for vLLM.
    """
    device = worker.device
    slots = tuple(_slot(device) for _ in range(_SLOTS)) if device.type == "cuda" else ()
    nbytes = ConnectorSettings.from_vllm_config(worker.vllm_config).device_store_bytes
    if nbytes == 0:
        return DeviceMemory(None, slots)
    if device.type != "cpu":  # whose memory is taken page by page, when it is written
        free, _ = torch.accelerator.get_memory_info(device)
        _check_room(nbytes, worker, free)
    return DeviceMemory(torch.empty(nbytes, dtype=torch.uint8, device=device), slots)


def _slot(device: torch.device) -> Slot:
    host = torch.empty(PIECE_BYTES, dtype=torch.uint8, pin_memory=True)
    return Slot(host, torch.empty(PIECE_BYTES, dtype=torch.uint8, device=device))


def _check_room(nbytes: int, worker: Any, free: int) -> None:
    paged = worker.vllm_config.cache_config.kv_cache_memory_bytes
    left = free - paged if paged else worker.requested_memory - (worker.init_snapshot.free_memory - free)
    if nbytes < left:
        return
    taken = "the weights and kv_cache_gb" if paged else "the weights"
    way_out = "or kv_cache_gb" if paged else "or raise vllm_args={'gpu_memory_utilization': ...}"
    raise InvalidInput(
        f"device_store_gb={nbytes / _GIB:.2f} does not fit on {worker.device}: {taken} leave "
        f"{max(left, 0) / _GIB:.2f} GiB; lower it, {way_out}"
    )


def make_transfer(memory: DeviceMemory, device: torch.device, dtype: torch.dtype) -> Transfer:
    """The way from host memory to a device; `dtype`: of the model's KV."""
    if memory.slots:
        return RingTransfer(memory.slots, dtype, CudaLane(device))
    return DirectTransfer(device, dtype, None if device.type == "cpu" else PIECE_BYTES)


def make_tier(
    settings: ConnectorSettings, kv_cache_config: Any, memory: DeviceMemory, transfer: Transfer
) -> DeviceTier | None:
    """The tier in the memory that was reserved; None where none was."""
    if memory.copies is None:
        return None
    group = kv_cache_config.kv_cache_groups[0]
    spec = group.kv_cache_spec
    return DeviceTier(
        memory.copies,
        (len(group.layer_names), spec.num_kv_heads, spec.head_size),
        spec.dtype,
        transfer,
        get_eviction(settings.eviction),
        namespace_share=settings.namespace_share,
    )
