"""Requests of one AsyncLLM: handed over, awaited, aborted, and ended with a clear error when the engine closes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any

from cachecraft_rag.errors import EngineClosed, InvalidInput
from cachecraft_rag.vllm.launch import shut_down
from cachecraft_rag.vllm.protocol import RequestParams
from cachecraft_rag.vllm.salts import cache_salt

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


class Requests:
    """All methods run on the loop the engine was started on. A request not awaited to its end is aborted."""

    def __init__(self, llm: AsyncLLM, secret: str) -> None:
        self._llm: AsyncLLM | None = llm
        self._secret = secret
        self._numbers = itertools.count()
        self._open: set[Any] = set()

    async def enqueue(
        self, token_ids: Iterable[int], sampling: Any, params: RequestParams | None, *, salt: str | None = None
    ) -> Any:
        """Hand a request to the engine; what comes later is scheduled behind it. Returns vLLM's output collector.

        With `params` None it is a plain request; in vLLM's prefix cache it finds what others of its `salt` left there.
        Raises `InvalidInput` for what vLLM refuses, `EngineClosed` where there is no engine any more.
        """
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._llm is None:
            raise _closed()
        prompt: dict[str, Any] = {"prompt_token_ids": list(token_ids)}
        if salt is not None:
            prompt["cache_salt"] = f"plain:{salt}"
        if params is not None:
            prompt["cache_salt"] = cache_salt(self._secret, params)
            transfer = {"cachecraft": params.to_wire()}
            sampling.extra_args = {**(sampling.extra_args or {}), "kv_transfer_params": transfer}
        request_id = f"cachecraft-{next(self._numbers)}"
        try:
            collector = await self._llm.add_request(request_id, prompt, sampling)
        except asyncio.CancelledError:
            await self._llm.abort(request_id)
            raise
        except EngineDeadError as error:
            raise _dead() from error
        except (VLLMClientError, ValueError) as error:
            raise InvalidInput(f"vLLM refuses the request: {error}") from error
        self._open.add(collector)
        return collector

    async def outputs(self, collector: Any) -> AsyncGenerator[Any, None]:
        """What a request yields. Closing the generator aborts it, and its blocks are freed."""
        from vllm.v1.engine.exceptions import EngineDeadError

        finished = False
        try:
            while not finished:
                output = await collector.get()
                finished = output.finished
                yield output
        except EngineDeadError as error:
            finished = True
            raise _dead() from error
        finally:
            self._open.discard(collector)
            if not finished and self._llm is not None:
                await self._llm.abort(collector.request_id, internal=True)

    async def last_output(self, collector: Any) -> Any:
        """The output that ends a request; cancelling the wait aborts it."""
        outputs = self.outputs(collector)
        try:
            async for output in outputs:
                if output.finished:
                    return output
        finally:
            await outputs.aclose()
        raise _dead()

    async def close(self) -> None:
        """End the engine process. Whoever waits for an answer gets `EngineClosed`."""
        llm, self._llm = self._llm, None
        if llm is None:
            return
        for collector in list(self._open):
            collector.put(_closed())
        await shut_down(llm)


def _closed() -> EngineClosed:
    return EngineClosed("this engine was closed before the answer was complete; start another ChunkEngine")


def _dead() -> EngineClosed:
    return EngineClosed("the engine process has died, its log says why; close this engine and start another")
