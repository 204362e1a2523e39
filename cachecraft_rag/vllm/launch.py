"""Starting an embedded AsyncLLM with the connector in it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachecraft_rag.config import EngineConfig
from cachecraft_rag.errors import CachecraftError, InvalidInput
from cachecraft_rag.stand_in import stand_in_token_ids
from cachecraft_rag.tokenise import PromptTokenizer
from cachecraft_rag.vllm.versions import check_version

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from cachecraft_rag.vllm.settings import ConnectorSettings

GIB = 1 << 30
_DEFAULT_CPU_KV_CACHE_GB = 4.0
_ONEDNN_CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def make_settings(config: EngineConfig, tokenizer: PromptTokenizer) -> ConnectorSettings:
    """What the connector is told at start; the weights' folder is found by name where the model is not a folder."""
    from cachecraft_rag.store.keys import weights_fingerprint
    from cachecraft_rag.vllm.settings import ConnectorSettings

    return ConnectorSettings(
        store_bytes=int(config.cpu_store_gb * GIB),
        min_chunk_tokens=config.min_chunk_tokens,
        store_misses=config.store_misses and not config.read_only,
        head_token_ids=tokenizer.head_token_ids,
        tokenizer_fingerprint=tokenizer.fingerprint(),
        weights_fingerprint=weights_fingerprint(_model_dir(config.model)),
        secret=secrets.token_hex(16),
        store_dir=str(Path(config.store_dir).expanduser().absolute()) if config.store_dir is not None else None,
        disk_store_bytes=int(config.disk_store_gb * GIB),
        read_only=config.read_only,
        eviction=config.eviction,
        namespace_share=config.namespace_share,
        recompute_bucket=config.recompute_bucket,
        keep_variants=config.keep_variants,
        compress=config.compression,
        device_store_bytes=int((config.device_store_gb or 0.0) * GIB),
        stand_in_token_ids=stand_in_token_ids(config.stand_in, tokenizer, config.max_model_len),
    )


def start_async_llm(config: EngineConfig, settings: ConnectorSettings | None) -> AsyncLLM:
    """Start the engine; with `settings` None a plain vLLM with the same options, for comparison.

    Must be called in the event loop that will use it. Blocks until the model is loaded.
    """
    check_version()
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise CachecraftError(
            "a ChunkEngine was started while the engine process imported your script: put the start of it under "
            'if __name__ == "__main__":'
        )
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    with _environment(config):
        arguments = _engine_arguments(config, settings)
        try:
            engine_args = AsyncEngineArgs(**arguments)
        except TypeError as error:
            raise InvalidInput(f"vllm_args holds what vLLM's AsyncEngineArgs does not know: {error}") from error
        vllm_config = engine_args.create_engine_config(UsageContext.ENGINE_CONTEXT)
        if settings is not None:
            from cachecraft_rag.vllm.support import check_support

            check_support(vllm_config)
            _check_store(settings, vllm_config)
        try:
            return AsyncLLM.from_vllm_config(vllm_config, disable_log_stats=engine_args.disable_log_stats)
        except RuntimeError as error:
            raise CachecraftError(
                f"the engine process for {config.model} did not start, the reason is in its log above ({error})"
            ) from error


def _check_store(settings: ConnectorSettings, vllm_config: Any) -> None:
    """Find out here whether the folder can be used, since the engine process could only say so in its log."""
    if settings.store_dir is None:
        return
    from cachecraft_rag.store.directory import StoreDirectory

    StoreDirectory(Path(settings.store_dir), read_only=settings.read_only)
    nodes = vllm_config.parallel_config.nnodes
    if nodes > 1:
        raise InvalidInput(
            f"store_dir={settings.store_dir!r} on {nodes} nodes is not supported: the scheduler looks at the files of "
            "all ranks, and is on one of the nodes; leave store_dir out"
        )


async def shut_down(llm: AsyncLLM) -> None:
    """End the engine process. Its output task goes first, since it takes a closed engine for a dead one."""
    handler = getattr(llm, "output_handler", None)
    if handler is not None:
        handler.cancel()
        await asyncio.gather(handler, return_exceptions=True)
    await asyncio.to_thread(llm.shutdown)
    await asyncio.sleep(0)  # its sockets are closed by a callback of this loop
    resources = getattr(llm.engine_core, "resources", None)
    if resources is not None and all(socket is None or socket.closed for socket in _sockets(resources)):
        resources.ctx.term()  # vLLM leaves it to the garbage collector, which complains


def _sockets(resources: Any) -> list[Any]:
    return [value for name, value in vars(resources).items() if name.endswith("_socket")]


def _engine_arguments(config: EngineConfig, settings: ConnectorSettings | None) -> dict[str, Any]:
    from vllm.platforms import current_platform

    arguments: dict[str, Any] = {
        "model": config.model,
        "dtype": config.dtype,
        "seed": config.seed,
        "use_tqdm_on_load": False,
        "enable_prefix_caching": config.enable_prefix_caching,
        "enforce_eager": config.enforce_eager,
        "disable_hybrid_kv_cache_manager": True,
    }
    for name in ("max_model_len", "max_num_batched_tokens", "max_num_seqs"):
        if getattr(config, name) is not None:
            arguments[name] = getattr(config, name)
    kv_cache_gb = config.kv_cache_gb
    if kv_cache_gb is None and current_platform.is_cpu():
        kv_cache_gb = _DEFAULT_CPU_KV_CACHE_GB
    if kv_cache_gb is not None:
        arguments["kv_cache_memory_bytes"] = int(kv_cache_gb * GIB)
    if current_platform.is_cpu():
        ranks = config.vllm_args.get("tensor_parallel_size", 1)
        arguments["distributed_executor_backend"] = "uni" if ranks == 1 else "mp"
    if settings is not None:
        from vllm.config import KVTransferConfig

        from cachecraft_rag.vllm.versions import worker_class

        arguments["worker_cls"] = worker_class()
        arguments["kv_transfer_config"] = KVTransferConfig(
            kv_connector="CachecraftConnector",
            kv_connector_module_path="cachecraft_rag.vllm.connector",
            kv_role="kv_both",
            kv_connector_extra_config={"cachecraft": settings.to_wire()},
        )
    arguments.update(config.vllm_args)
    return arguments


@contextmanager
def _environment(config: EngineConfig) -> Iterator[None]:
    """Variables that the engine process inherits; the caller's own are put back."""
    wanted = {
        # One engine process does it all: vLLM would otherwise put its CPU worker into a process of its own.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": str(config.threads or len(os.sched_getaffinity(0))),
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        # By default oneDNN keeps code for 1,024 shapes. Slices have any number of rows, and it grows for a long time.
        _ONEDNN_CACHE: os.environ.get(_ONEDNN_CACHE, "128"),
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        _restore(before)


def _restore(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _model_dir(model: str) -> Path:
    folder = Path(model)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(model, allow_patterns=["config.json", "*.safetensors"]))
