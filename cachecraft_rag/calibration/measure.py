"""One sample answered by full prefill, and along that answer at each ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cachecraft_rag.bench.quality.divergence import agreement, kl_divergence
from cachecraft_rag.bench.quality.forced_engine import ForcedEngine
from cachecraft_rag.bench.quality.in_flight import in_flight
from cachecraft_rag.bench.quality.shares import check_reused, context_share
from cachecraft_rag.prompt import ChunkPrompt


@dataclass(frozen=True, slots=True)
class Measured:
    """One sample; a value for each ratio. `first_token_ratios`: TTFT over full prefill's, empty where not timed."""

    answer_tokens: int
    context_tokens: int
    agreements: tuple[float, ...]
    kls: tuple[float, ...]
    shares: tuple[float, ...]
    first_token_ratios: tuple[float, ...]


def measure(
    forced: ForcedEngine, prompt: ChunkPrompt, policy: str, ratios: Sequence[float], *, max_tokens: int, timed: bool
) -> Measured:
    """All ratios are in flight at once; with `timed` each is sent once more, alone, for its TTFT."""
    engine = forced.engine
    engine.prewarm(prompt.chunks, progress=False)
    forced.forget_prompts()
    full = forced.say(prompt, max_tokens, reuse=False, fresh=True)
    token_ids = full.answer.token_ids
    options: list[dict[str, Any]] = [{"policy": policy, "recompute_ratio": ratio} for ratio in ratios]
    starts = ((None, partial(forced.submit_forced, prompt, token_ids, **own)) for own in options)
    agreements, kls, shares = [], [], []
    for _, said in in_flight(starts, len(ratios)):
        check_reused(engine, said.answer)
        agreements.append(float(np.mean(agreement(full.logits, said.logits))))
        kls.append(float(np.mean(kl_divergence(full.logits, said.logits))))
        shares.append(context_share(engine, prompt, said.answer))
    seconds: list[float] = []
    if timed:
        forced.forget_prompts()
        alone: list[dict[str, Any]] = [{"reuse": False, "fresh": True}, *options]
        seconds = [engine.generate(prompt, max_tokens=1, **own).first_token_seconds for own in alone]
    context = engine.tokenizer.encode(prompt).chunks[-1].stop
    ratios_to_full = tuple(own / seconds[0] for own in seconds[1:])
    return Measured(len(token_ids), context, tuple(agreements), tuple(kls), tuple(shares), ratios_to_full)
