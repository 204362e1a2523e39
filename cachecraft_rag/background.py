"""An event loop in a thread of its own, so that synchronous callers, threads and tasks share one engine."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_END = object()


class BackgroundLoop:
    """Runs coroutines; `close` cancels what is left and ends the thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for `work` from a thread; an interrupted wait (Ctrl-C) cancels it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def run_async(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` from another loop; cancelling the wait cancels it."""
        return await asyncio.wrap_future(self.submit(work))

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """Items of `source` for a thread. Closing the iterator cancels the source."""
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        future = self.submit(_pump(source, items.put))
        try:
            while (item := items.get()) is not _END:
                yield item
            future.result()
        finally:
            future.cancel()

    async def iterate_async(self, source: AsyncIterator[T]) -> AsyncIterator[T]:
        """Items of `source` for a task of another loop. Closing the iterator cancels the source."""
        loop = asyncio.get_running_loop()
        items: asyncio.Queue[Any] = asyncio.Queue()

        def put(item: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(items.put_nowait, item)

        future = self.submit(_pump(source, put))
        try:
            while (item := await items.get()) is not _END:
                yield item
            await asyncio.wrap_future(future)
        finally:
            future.cancel()

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


async def _pump(source: AsyncIterator[T], put: Callable[[Any], None]) -> None:
    try:
        async for item in source:
            put(item)
    finally:
        put(_END)
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
