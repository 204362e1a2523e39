"""Refusing, at start, what is not proven: one sentence each, naming the cause and the way out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cachecraft_rag.errors import UnsupportedModel
from cachecraft_rag.vllm.versions import check_version


def check_support(vllm_config: Any, kv_cache_config: Any | None = None) -> None:
    """Raise `UnsupportedModel` with the first reason why chunk reuse is not proven for this configuration.

    `kv_cache_config` is known only inside the engine; without it, what shows in vLLM's configuration is checked.
    """
    check_version()
    for reason in refusals(vllm_config, kv_cache_config):
        raise UnsupportedModel(reason)


def refusals(vllm_config: Any, kv_cache_config: Any | None = None) -> Iterator[str]:
    """All reasons, most telling first."""
    yield from _model_refusals(vllm_config.model_config)
    yield from _configuration_refusals(vllm_config)
    if kv_cache_config is not None:
        yield from _cache_refusals(kv_cache_config)


def _model_refusals(model: Any) -> Iterator[str]:
    config = model.hf_text_config
    name = model.model
    if model.is_encoder_decoder:
        yield f"{name} is an encoder-decoder model; use a decoder-only one"
    if model.runner_type != "generate":
        yield f"{name} runs as a {model.runner_type} model; chunk reuse needs one that generates text"
    if model.is_multimodal_model:
        yield f"{name} is multimodal, which is not proven; use its text-only sibling"
    if model.use_mla:
        yield f"{name} uses multi-head latent attention (MLA), whose cache cannot be re-rotated; use a GQA model"
    if model.is_hybrid or model.is_attention_free:
        yield f"{name} has recurrent or hybrid layers, whose state has no chunks; use a pure attention model"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        yield f"{name} has a sliding window of {config.sliding_window} tokens, not proven; use a model without one"
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if "mrope_section" in rope:
        yield f"{name} uses M-RoPE (positions in several dimensions), which is not proven; use a text-only model"
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind in ("dynamic", "longrope"):
        yield f"{name} uses {kind} RoPE, whose angles depend on the prompt's length; use a model with fixed angles"


def _configuration_refusals(config: Any) -> Iterator[str]:
    cache_dtype = config.cache_config.cache_dtype
    if cache_dtype != "auto" and "fp8" in str(cache_dtype):
        yield f"kv_cache_dtype={cache_dtype!r} is not proven; use 'auto'"
    if config.lora_config is not None:
        yield "LoRA is enabled, and cached KV would not know which adapter it was made with; start without enable_lora"
    if config.speculative_config is not None:
        yield "speculative decoding is configured, which is not proven; start without speculative_config"
    parallel = config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        yield f"pipeline_parallel_size={parallel.pipeline_parallel_size} is not proven; use 1"
    if parallel.data_parallel_size > 1:
        yield f"data_parallel_size={parallel.data_parallel_size} is not proven; start one engine for each replica"
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            yield f"{name}={getattr(parallel, name)} splits a prompt's cache over ranks, which is not proven; use 1"


def _cache_refusals(kv_cache_config: Any) -> Iterator[str]:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1 or type(groups[0].kv_cache_spec) is not FullAttentionSpec:
        kinds = ", ".join(type(group.kv_cache_spec).__name__ for group in groups)
        yield f"the model's KV cache has groups of {kinds}; chunk reuse is proven for one group of full attention"
