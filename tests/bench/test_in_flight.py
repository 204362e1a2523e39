from concurrent.futures import Future
from functools import partial

import pytest

from cachecraft_rag.bench.quality.in_flight import in_flight


class Requests:
    """Futures that are done once somebody asks for them, or for a later one."""

    def __init__(self) -> None:
        self.open: list[int] = []
        self.most = 0
        self.futures: list[Future[int]] = []

    def start(self, number: int) -> Future[int]:
        future: Future[int] = Future()
        future.result = lambda timeout=None: self._end(number)  # type: ignore[method-assign]
        self.open.append(number)
        self.most = max(self.most, len(self.open))
        self.futures.append(future)
        return future

    def _end(self, number: int) -> int:
        self.open.remove(number)
        return 10 * number


def starts(requests, count):
    return ((number, partial(requests.start, number)) for number in range(count))


@pytest.mark.parametrize("together", [1, 3, 9])
def test_results_in_order_and_no_more_at_once(together):
    requests = Requests()
    seen = []
    for key, result in in_flight(starts(requests, 7), together):
        seen.append((key, result))
        assert together > 1 or not requests.open  # what is alone is dealt with before the next begins
    assert seen == [(number, 10 * number) for number in range(7)]
    assert requests.most == min(together, 7)


def test_what_is_left_is_cancelled_where_it_ends_early():
    requests = Requests()
    results = in_flight(starts(requests, 7), 3)
    next(results)
    results.close()
    assert [future.cancelled() for future in requests.futures] == [False, True, True]


def test_of_nothing_there_is_nothing():
    assert list(in_flight([], 4)) == []
