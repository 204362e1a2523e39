"""The chunks that were retrieved last, for each tenant apart."""

from __future__ import annotations

import threading
from collections import OrderedDict

from cachecraft_rag.recover import RecentChunks


class RecentByNamespace:
    """At most `capacity` namespaces, those used last. Copies of a chat model share one, in any number of threads."""

    def __init__(self, capacity: int = 256) -> None:
        self._capacity = capacity
        self._recent: OrderedDict[str | None, RecentChunks] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, namespace: str | None) -> RecentChunks:
        with self._lock:
            recent = self._recent.setdefault(namespace, RecentChunks())
            self._recent.move_to_end(namespace)
            if len(self._recent) > self._capacity:
                self._recent.popitem(last=False)
            return recent
