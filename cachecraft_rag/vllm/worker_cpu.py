"""vLLM's CPU worker, handing the loaded model to the connector."""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker

from cachecraft_rag.vllm.connector import bind_loaded_model
from cachecraft_rag.vllm.device_memory import reserve


class CachecraftCPUWorker(CPUWorker):
    def load_model(self, **options: Any) -> None:
        super().load_model(**options)
        self._device_memory = reserve(self)

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        bind_loaded_model(self, self._device_memory)
