"""What `bench.speed` measured, as JSON and as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Measured:
    """One way to answer. Seconds are TTFT; `share_computed`: of the prompt's tokens, what the model ran.

    `of_limit`: plain TTFT times `share_computed`, over ours; 1.0 would be a cost in proportion to the tokens.
    """

    policy: str
    ratio: float
    seconds: list[float]
    median: float
    share_computed: float
    speedup_vs_plain: float
    speedup_vs_prefix_cache: float
    of_limit: float


@dataclass(frozen=True, slots=True)
class SpeedResult:
    """What was measured, and on what. The flat fields are those of the policy and ratio that were asked for.

    `prewarm_vs_plain`: seconds per chunk token of prewarming, over plain vLLM's for prefilling the same chunks
    behind the head alone.
    Memory in bytes: peaks of the engine processes during requests; `memory_allowed` is plain's peak plus the store's
    budget plus one request's KV.
    """

    model: str
    dtype: str
    policy: str
    ratio: float
    prompt_tokens: int
    chunks: int
    chunk_tokens: int
    repetitions: int
    plain: float
    prefix_cache: float
    ours: float
    speedup_vs_plain: float
    speedup_vs_prefix_cache: float
    share_computed: float
    of_limit: float
    prewarm_vs_plain: float
    prewarm_tokens_per_second: float
    memory_plain: int
    memory_ours: int
    memory_allowed: int
    plain_seconds: list[float]
    prefix_cache_seconds: list[float]
    variants: tuple[Measured, ...]
    machine: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        prompt = f"{self.prompt_tokens} tokens, {self.chunks} chunks of {self.chunk_tokens}"
        lines = [
            f"{self.model}, {self.dtype}: {prompt}; medians of {self.repetitions} repetitions, each a new order",
            f"  plain vLLM                 {self.plain:8.3f} s to the first token",
            f"  vLLM with prefix caching   {self.prefix_cache:8.3f} s",
        ]
        lines += [
            f"  {f'{v.policy} at {v.ratio:g}':<26} {v.median:8.3f} s   {v.speedup_vs_plain:5.1f}x plain   "
            f"{v.speedup_vs_prefix_cache:5.1f}x prefix caching   {v.share_computed:6.1%} computed   "
            f"{v.of_limit:4.0%} of the limit"
            for v in self.variants
        ]
        lines.append(
            f"  prewarming {self.prewarm_tokens_per_second:,.0f} tokens/s, {self.prewarm_vs_plain:.2f} times plain "
            f"vLLM's seconds per token; peak memory {self.memory_ours / 2**20:,.0f} MiB, plain vLLM "
            f"{self.memory_plain / 2**20:,.0f}, allowed {self.memory_allowed / 2**20:,.0f}"
        )
        return "\n".join(lines)
