"""Plain vLLM without any connector, in an engine process of its own: the baseline of every comparison."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cachecraft_rag.background import BackgroundLoop
from cachecraft_rag.closing import Closing
from cachecraft_rag.config import EngineConfig

if TYPE_CHECKING:
    from cachecraft_rag.vllm.requests import Requests


class PlainEngine(Closing):
    """Sends token ids to an AsyncLLM with the options of `config`, and measures the time to the first token."""

    def __init__(self, config: EngineConfig) -> None:
        self._loop = BackgroundLoop("plain-vllm")
        try:
            self._requests = self._loop.run(_start(config))
        except BaseException:
            self._loop.close()
            raise

    def first_token_seconds(self, token_ids: Sequence[int], *, fresh: bool) -> float:
        """TTFT of one request; a `fresh` one finds nothing in the prefix cache."""
        return self._loop.run(self._first_token(token_ids, fresh))

    def prefill_seconds(self, prompts: Sequence[Sequence[int]]) -> float:
        """Time until all prompts, sent at once and fresh, have their first token."""
        started = time.perf_counter()
        for future in [self._loop.submit(self._first_token(prompt, True)) for prompt in prompts]:
            future.result()
        return time.perf_counter() - started

    def close(self) -> None:
        self._loop.run(self._requests.close())
        self._loop.close()

    async def _first_token(self, token_ids: Sequence[int], fresh: bool) -> float:
        from cachecraft_rag.vllm.sampling import make_sampling

        started = time.perf_counter()
        sampling = make_sampling(None, {"max_tokens": 1})
        salt = secrets.token_hex(16) if fresh else None
        await self._requests.last_output(await self._requests.enqueue(token_ids, sampling, None, salt=salt))
        return time.perf_counter() - started


async def _start(config: EngineConfig) -> Requests:
    from cachecraft_rag.vllm.launch import start_async_llm
    from cachecraft_rag.vllm.requests import Requests

    return Requests(start_async_llm(config, None), secret="")
