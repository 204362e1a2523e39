import asyncio
import concurrent.futures
import threading
import time

import pytest

from cachecraft_rag.background import BackgroundLoop

LONG = 30.0


@pytest.fixture
def loop():
    made = BackgroundLoop("test-loop")
    yield made
    made.close()


class Source:
    """Numbers from 0 on, without an end unless `stop` is given; notes whether it was closed."""

    def __init__(self, stop=None, pause=0.0, error_at=None):
        self.stop, self.pause, self.error_at = stop, pause, error_at
        self.made = 0
        self.begun, self.closed = threading.Event(), threading.Event()

    async def items(self):
        try:
            while self.stop is None or self.made < self.stop:
                if self.made == self.error_at:
                    raise KeyError("source")
                self.made += 1
                self.begun.set()
                yield self.made - 1
                await asyncio.sleep(self.pause)
        finally:
            self.closed.set()


class Waiting:
    """A coroutine that waits and notes that it was cancelled."""

    def __init__(self):
        self.started, self.cancelled = threading.Event(), threading.Event()

    async def work(self):
        self.started.set()
        try:
            await asyncio.sleep(LONG)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


async def value(result):
    await asyncio.sleep(0)
    return result


async def fail():
    await asyncio.sleep(0)
    raise KeyError("work")


def test_run_returns_the_value_and_raises_the_error(loop):
    assert loop.run(value(3)) == 3
    with pytest.raises(KeyError, match="work"):
        loop.run(fail())
    assert loop.run(value(4)) == 4


async def test_run_async_returns_the_value_and_raises_the_error(loop):
    assert await loop.run_async(value(3)) == 3
    with pytest.raises(KeyError, match="work"):
        await loop.run_async(fail())


def test_many_threads_share_the_loop(loop):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda number: loop.run(value(number)), range(50))) == list(range(50))


async def test_cancelling_the_task_cancels_the_work(loop):
    waiting = Waiting()
    task = asyncio.create_task(loop.run_async(waiting.work()))
    assert await asyncio.to_thread(waiting.started.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(waiting.cancelled.wait, 5)


def test_cancelling_the_future_cancels_the_work(loop):
    waiting = Waiting()
    future = loop.submit(waiting.work())
    assert waiting.started.wait(5)
    assert future.cancel()
    assert waiting.cancelled.wait(5)


def test_iterate_gives_all_items_in_order(loop):
    source = Source(stop=20)
    assert list(loop.iterate(source.items())) == list(range(20))
    assert source.closed.wait(5)


async def test_iterate_async_gives_all_items_in_order(loop):
    source = Source(stop=20)
    assert [item async for item in loop.iterate_async(source.items())] == list(range(20))
    assert source.closed.wait(5)


def test_items_come_as_they_are_made(loop):
    stream = loop.iterate(Source(pause=0.05).items())
    started = time.perf_counter()
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    assert time.perf_counter() - started < 2
    stream.close()


def test_closing_a_stream_closes_its_source(loop):
    source = Source(pause=0.001)
    stream = loop.iterate(source.items())
    next(stream)
    stream.close()
    assert source.closed.wait(5)
    made = source.made
    time.sleep(0.05)
    assert source.made == made


async def test_closing_an_async_stream_closes_its_source(loop):
    source = Source(pause=0.001)
    stream = loop.iterate_async(source.items())
    await anext(stream)
    await stream.aclose()
    assert await asyncio.to_thread(source.closed.wait, 5)


async def test_cancelling_the_reader_closes_the_source(loop):
    source = Source(pause=0.001)

    async def read():
        async for _ in loop.iterate_async(source.items()):
            pass

    task = asyncio.create_task(read())
    assert await asyncio.to_thread(source.begun.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(source.closed.wait, 5)


def test_an_error_comes_after_the_items_before_it(loop):
    stream = loop.iterate(Source(error_at=3).items())
    assert [next(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="source"):
        next(stream)


async def test_an_error_comes_after_the_items_before_it_async(loop):
    stream = loop.iterate_async(Source(error_at=3).items())
    assert [await anext(stream) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError, match="source"):
        await anext(stream)


def test_a_stream_that_is_never_read_starts_nothing(loop):
    source = Source()
    stream = loop.iterate(source.items())
    del stream
    assert loop.run(value(1)) == 1
    assert source.made == 0


def test_close_cancels_what_runs_and_ends_the_thread():
    loop = BackgroundLoop("closing")
    waiting = Waiting()
    future = loop.submit(waiting.work())
    assert waiting.started.wait(5)
    loop.close()
    assert waiting.cancelled.is_set()
    assert future.cancelled()
    assert not any(thread.name == "closing" for thread in threading.enumerate())
    loop.close()


def test_close_ends_a_reader_that_waits():
    loop = BackgroundLoop("closing")
    source = Source(pause=LONG)
    stream = loop.iterate(source.items())
    next(stream)
    ended = threading.Event()

    def read():
        with pytest.raises(concurrent.futures.CancelledError):
            next(stream)
        ended.set()

    reader = threading.Thread(target=read)
    reader.start()
    time.sleep(0.05)
    loop.close()
    reader.join(5)
    assert ended.is_set()
    assert source.closed.is_set()


def test_work_after_close_is_refused_without_a_coroutine_left_behind(recwarn):
    loop = BackgroundLoop("closed")
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.run(value(1))
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


def test_loops_are_independent(loop):
    other = BackgroundLoop("other")
    other.close()
    assert loop.run(value(1)) == 1
