"""The KV connector that vLLM loads: thin, each call goes to the scheduler half or the worker half."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole

from cachecraft_rag.vllm.device_memory import DeviceMemory, make_tier, make_transfer
from cachecraft_rag.vllm.disk_tier import open_disk
from cachecraft_rag.vllm.identity import key_maker
from cachecraft_rag.vllm.parent import end_with_parent
from cachecraft_rag.vllm.protocol import ConnectorMetadata, WorkerMetadata
from cachecraft_rag.vllm.scheduler_half import SchedulerHalf
from cachecraft_rag.vllm.settings import ConnectorSettings
from cachecraft_rag.vllm.support import check_support
from cachecraft_rag.vllm.worker_half import WorkerHalf

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.forward_context import ForwardContext
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class CachecraftConnector(KVConnectorBase_V1):
    """Reuses the KV of chunks at any position, see `docs/architecture.md`."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        check_support(vllm_config, kv_cache_config)
        self._scheduler: SchedulerHalf | None = None
        self._worker: WorkerHalf | None = None
        if role is KVConnectorRole.SCHEDULER:
            settings = ConnectorSettings.from_vllm_config(vllm_config)
            self._scheduler = SchedulerHalf(settings, vllm_config, kv_cache_config)
            end_with_parent()

    def bind_model(self, model: torch.nn.Module, device: torch.device, memory: DeviceMemory, rank: int) -> None:
        """Worker side, once, after the model is loaded and the paged cache is allocated.

        `memory`: what was reserved on the device.
        """
        settings = ConnectorSettings.from_vllm_config(self._vllm_config)
        ranks = self._vllm_config.parallel_config.tensor_parallel_size
        disk = open_disk(settings, key_maker(settings, self._vllm_config, self._kv_cache_config), rank, ranks)
        dtype = self._kv_cache_config.kv_cache_groups[0].kv_cache_spec.dtype
        transfer = make_transfer(memory, device, dtype)
        self._worker = WorkerHalf(
            self._vllm_config,
            self._kv_cache_config,
            model,
            device,
            disk,
            rank=rank,
            ranks=ranks,
            compress=settings.compress,
            transfer=transfer,
            tier=make_tier(settings, self._kv_cache_config, memory, transfer),
        )

    # Scheduler side

    def on_new_request(self, request: Request) -> None:
        self._scheduling.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self._scheduling.get_num_new_matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self._scheduling.update_state_after_alloc(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> ConnectorMetadata:
        return self._scheduling.take_metadata()

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, WorkerMetadata):
            self._scheduling.on_worker_report(report)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return False, self._scheduling.request_finished(request)

    # Worker side

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, ConnectorMetadata)
        self._working.step(metadata)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: a request runs only after its plan is done."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing is saved from the paged cache: chunks are captured while they are computed."""

    def wait_for_save(self) -> None:
        """Captures are complete when their slice is."""

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._working.take_finished() or None

    def build_connector_worker_meta(self) -> WorkerMetadata | None:
        return self._working.take_report()

    def shutdown(self) -> None:
        if self._worker is not None:
            self._worker.close()

    @property
    def _scheduling(self) -> SchedulerHalf:
        assert self._scheduler is not None, "a worker's connector was asked to schedule"
        return self._scheduler

    @property
    def _working(self) -> WorkerHalf:
        assert self._worker is not None, "the connector was not given the model: is worker_cls ours?"
        return self._worker


def bind_loaded_model(worker: Any, memory: DeviceMemory) -> None:
    """Give the connector of this process the model that `worker` (one of vLLM's) has loaded."""
    connector = get_kv_transfer_group()
    assert isinstance(connector, CachecraftConnector)
    connector.bind_model(worker.model_runner.get_model(), worker.device, memory, worker.rank)
