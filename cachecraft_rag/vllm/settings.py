"""What the front end tells the connector at start, in `kv_connector_extra_config["cachecraft"]`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cachecraft_rag.errors import InvalidInput

_TOKEN_IDS = ("head_token_ids", "stand_in_token_ids")


@dataclass(frozen=True, slots=True)
class ConnectorSettings:
    """`secret` goes into cache salts; `head_token_ids` is the head of prompts with the default system text, and
    `stand_in_token_ids` what follows it while the canonical KV of chunks is computed.

    `store_dir`: folder of the disk tier, None for none; `read_only`: nothing is stored, in no tier; `recompute_bucket`:
    the number of computed tokens is a multiple of it; `keep_variants`: of each chunk, at most; `compress`: KV is kept
    in these 8 bits; `device_store_bytes`: for copies on the device, of each rank.
    """

    store_bytes: int
    min_chunk_tokens: int
    store_misses: bool
    head_token_ids: tuple[int, ...]
    tokenizer_fingerprint: str
    weights_fingerprint: str
    secret: str
    store_dir: str | None = None
    disk_store_bytes: int = 0
    read_only: bool = False
    eviction: str = "score"
    namespace_share: float = 1.0
    recompute_bucket: int = 1
    keep_variants: int = 0
    compress: str | None = None
    device_store_bytes: int = 0
    stand_in_token_ids: tuple[int, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        return {**asdict(self), **{name: list(getattr(self, name)) for name in _TOKEN_IDS}}

    @classmethod
    def from_vllm_config(cls, vllm_config: Any) -> ConnectorSettings:
        wire = vllm_config.kv_transfer_config.kv_connector_extra_config.get("cachecraft")
        if wire is None:
            raise InvalidInput(
                "kv_connector_extra_config has no 'cachecraft' section; start it with ChunkEngine, which fills it"
            )
        return cls(**{**wire, **{name: tuple(wire[name]) for name in _TOKEN_IDS}})
