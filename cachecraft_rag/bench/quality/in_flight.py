"""Several requests under way at once, their results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

K = TypeVar("K")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """What a started request is: a `Future`, or something like one."""

    def result(self) -> T_co: ...

    def cancel(self) -> bool: ...


def in_flight(starts: Iterable[tuple[K, Callable[[], Pending[T]]]], together: int) -> Iterator[tuple[K, T]]:
    """Start requests, at most `together` of them at once, and give each key with its result, in their order.

    The next is taken from `starts` only when there is room, so with `together` 1 each one's result has been dealt with
    before the next begins. What is under way when the iterator ends early is cancelled.
    """
    waiting: deque[tuple[K, Pending[T]]] = deque()
    try:
        for key, start in starts:
            waiting.append((key, start()))
            if len(waiting) == together:
                first, pending = waiting.popleft()
                yield first, pending.result()
        while waiting:
            first, pending = waiting.popleft()
            yield first, pending.result()
    finally:
        for _, pending in waiting:
            pending.cancel()
