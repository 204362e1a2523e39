"""What the numbers in a chunk's KV depend on, read from vLLM's configuration."""

from __future__ import annotations

import json
from typing import Any

from cachecraft_rag.store import KeyMaker
from cachecraft_rag.store.entry import EntrySize
from cachecraft_rag.vllm.settings import ConnectorSettings


def key_maker(settings: ConnectorSettings, vllm_config: Any, kv_cache_config: Any) -> KeyMaker:
    model = vllm_config.model_config
    text_config = model.hf_text_config
    rope = getattr(text_config, "rope_parameters", None) or {
        "rope_theta": getattr(text_config, "rope_theta", None),
        "rope_scaling": getattr(text_config, "rope_scaling", None),
    }
    spec = kv_cache_config.kv_cache_groups[0].kv_cache_spec
    identity: dict[str, object] = {
        "weights": settings.weights_fingerprint,
        "revision": model.revision,
        "tokenizer": settings.tokenizer_fingerprint,
        "dtype": str(model.dtype),
        "kv_dtype": str(spec.dtype),
        "quantization": str(model.quantization),
        "rope": json.dumps(rope, sort_keys=True, default=str),
        "lora": None,
        "layers": len(kv_cache_config.kv_cache_groups[0].layer_names),
        "kv_heads": spec.num_kv_heads,
        "head_size": spec.head_size,
    }
    if settings.compress is not None:
        identity["compression"] = f"{settings.compress} per channel"
    return KeyMaker(identity, settings.head_token_ids + settings.stand_in_token_ids)


def entry_size(settings: ConnectorSettings, kv_cache_config: Any) -> EntrySize:
    """What K and V of all layers take, on one rank."""
    group = kv_cache_config.kv_cache_groups[0]
    spec = group.kv_cache_spec
    numbers = 2 * len(group.layer_names) * spec.num_kv_heads * spec.head_size
    if settings.compress is not None:
        return EntrySize(per_token=numbers, per_entry=4 * numbers)  # its scales
    return EntrySize(per_token=numbers * spec.dtype.itemsize)
