"""Streams that end their request in the engine when the caller stops reading."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")
_OPENED: ContextVar[list[Any] | None] = ContextVar("cachecraft_opened_streams", default=None)


def opened(stream: T) -> T:
    """Note an engine's stream, to be closed with the stream that `closing` returns."""
    streams = _OPENED.get()
    if streams is not None:
        streams.append(stream)
    return stream


def closing(method: Callable[..., Any]) -> Callable[..., Any]:
    """For a method that returns a generator: closing that closes the engine's stream below it at once.

    LlamaIndex's callbacks wrap generators into others that leave the inner one to the garbage collector.
    """

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
        streams: list[Any] = []
        token = _OPENED.set(streams)
        try:
            outer = method(*args, **kwargs)
        finally:
            _OPENED.reset(token)
        return _read(outer, streams)

    return call


def aclosing(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """`closing` for a coroutine that returns an asynchronous generator."""

    @wraps(method)
    async def call(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        streams: list[Any] = []
        token = _OPENED.set(streams)
        try:
            outer = await method(*args, **kwargs)
        finally:
            _OPENED.reset(token)
        return _aread(outer, streams)

    return call


def _read(outer: Generator[T, None, None], streams: list[Any]) -> Generator[T, None, None]:
    try:
        yield from outer
    finally:
        for stream in streams:
            stream.close()


async def _aread(outer: AsyncGenerator[T, None], streams: list[Any]) -> AsyncGenerator[T, None]:
    try:
        async for item in outer:
            yield item
    finally:
        await outer.aclose()
        for stream in streams:
            await stream.aclose()
