"""Mixed into the engine's worker (vLLM's `worker_extension_cls`), so that a test can reach what lies on its device."""

from vllm.distributed.kv_transfer import get_kv_transfer_group


class DeviceCopies:
    def spoil_device_copies(self) -> None:
        """Overwrite all copies of chunks on the device, and nothing else."""
        tier = get_kv_transfer_group()._working._tier
        tier._pool.normal_()
