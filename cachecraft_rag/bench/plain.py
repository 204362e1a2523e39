"""Plain vLLM without any connector, in an engine process of its own: the baseline of every comparison."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from cachecraft_rag.background import BackgroundLoop
from cachecraft_rag.config import EngineConfig


class PlainEngine:
    """Sends token ids to an AsyncLLM with the options of `config`, and measures the time to the first token."""

    def __init__(self, config: EngineConfig) -> None:
        self._loop = BackgroundLoop("plain-vllm")
        self._numbers = itertools.count()
        try:
            self._llm = self._loop.run(_start(config))
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
        from cachecraft_rag.vllm.launch import shut_down

        self._loop.run(shut_down(self._llm))
        del self._llm
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _first_token(self, token_ids: Sequence[int], fresh: bool) -> float:
        from cachecraft_rag.vllm.sampling import make_sampling

        prompt: dict[str, Any] = {"prompt_token_ids": list(token_ids)}
        if fresh:
            prompt["cache_salt"] = secrets.token_hex(16)
        sampling = make_sampling(None, {"max_tokens": 1})
        started = time.perf_counter()
        async for _ in self._llm.generate(prompt, sampling, f"plain-{next(self._numbers)}"):
            return time.perf_counter() - started
        raise AssertionError("vLLM ended a request without a token")


async def _start(config: EngineConfig) -> Any:
    from cachecraft_rag.vllm.launch import start_async_llm

    return start_async_llm(config, None)
