"""Answers compared with full prefill in the background, one at a time."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cachecraft_rag.drift import DriftGuard, Skipped
from cachecraft_rag.errors import CachecraftError
from cachecraft_rag.vllm.requests import Requests
from cachecraft_rag.vllm.sampling import make_sampling

if TYPE_CHECKING:
    from vllm import SamplingParams

logger = logging.getLogger(__name__)


class DriftWatch:
    """All methods run on the engine's loop. `guard` counts, and says what the default ratio is by now."""

    def __init__(self, guard: DriftGuard, requests: Requests) -> None:
        self.guard = guard
        self._requests = requests
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def finished(
        self,
        prompt_ids: Sequence[int],
        answer_ids: Sequence[int],
        sampling: SamplingParams,
        ratio: float,
        *,
        reused: bool = True,
    ) -> None:
        """A picked answer, made at `ratio`, is complete: compare it, or count why not.

        `reused`: stored KV of a chunk went into it.
        """
        reason = not_comparable(sampling) if reused else Skipped.NOTHING_REUSED
        if reason is None and self._task is not None:
            reason = Skipped.BUSY
        if self._closed:
            reason = Skipped.ABORTED
        if reason is not None:
            self.guard.skip(reason)
        elif answer_ids:
            self._task = asyncio.create_task(self._compare(prompt_ids, answer_ids, ratio))
            self._task.add_done_callback(self._ended)

    async def close(self) -> None:
        """Abort what is being compared; nothing is compared from here on."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _compare(self, prompt_ids: Sequence[int], answer_ids: Sequence[int], ratio: float) -> None:
        try:
            agreed = await count_agreeing(self._requests, prompt_ids, answer_ids)
        except Exception as error:
            self.guard.skip(Skipped.FAILED)
            unexpected = None if isinstance(error, CachecraftError) else error
            logger.warning("an answer could not be compared with full prefill: %s", error, exc_info=unexpected)
        else:
            self.guard.add(ratio, len(answer_ids), agreed)

    def _ended(self, _task: asyncio.Task[None]) -> None:
        self._task = None


def not_comparable(sampling: SamplingParams) -> Skipped | None:
    """Why an answer cannot be expected to consist of the model's most likely tokens; None where it can."""
    from vllm.sampling_params import SamplingType

    if sampling.sampling_type != SamplingType.GREEDY:
        return Skipped.SAMPLED
    changes = (sampling.structured_outputs, sampling.logit_bias, sampling.bad_words, sampling.allowed_token_ids)
    penalties = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty - 1.0)
    own = set(sampling.extra_args or ()) - {"kv_transfer_params"}
    changed = any(changes) or any(penalties) or sampling.min_tokens > 0 or bool(own)
    return Skipped.CONSTRAINED if changed else None


async def count_agreeing(requests: Requests, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> int:
    """How many tokens of an answer are the most likely ones after a full prefill of all that stands in front of them.

    The last one is not sent but generated, so that whatever was answered fits into the model's context once more. vLLM
    reads nothing from its prefix cache where it is asked for log-probabilities of the prompt; under a salt of its own
    what is computed serves nobody else.
    """
    sampling = make_sampling(None, {"max_tokens": 1, "prompt_logprobs": 1, "detokenize": False})
    sent = [*prompt_ids, *answer_ids[:-1]]
    collector = await requests.enqueue(sent, sampling, None, salt=secrets.token_hex(16))
    output = await requests.last_output(collector)
    places = output.prompt_logprobs[len(prompt_ids) :]
    agreed = sum(is_best(place, token) for place, token in zip(places, answer_ids[:-1], strict=True))
    return agreed + (output.outputs[0].token_ids[0] == answer_ids[-1])


def is_best(place: Mapping[int, Any], token: int) -> bool:
    """Whether no token of a place's log-probabilities, which hold the best and the one that is there, beats `token`."""
    own: float = place[token].logprob
    return all(other.logprob <= own for other in place.values())
