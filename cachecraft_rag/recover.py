"""Chunks found again in flat prompts, for chains that put their documents into one string."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.prompt import JOINER

if TYPE_CHECKING:
    from ahocorasick_rs import AhoCorasick


class RecentChunks:
    """The chunks that were retrieved last, to be found in flat text. Any number of threads may use one.

    At most `capacity` chunks of at least `min_chars` characters each; shorter ones would be found where no chunk was
    meant.
    """

    def __init__(self, capacity: int = 256, min_chars: int = 32) -> None:
        self._capacity = capacity
        self._min_chars = min_chars
        self._chunks: OrderedDict[str, Chunk] = OrderedDict()
        self._finder: AhoCorasick | None = None
        self._listed: list[str] = []  # digests, in the order of the finder's patterns
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._chunks)

    def remember(self, chunks: Iterable[Chunk]) -> None:
        with self._lock:
            for chunk in chunks:
                if len(chunk.text) < self._min_chars:
                    continue
                if chunk.digest not in self._chunks:
                    self._finder = None
                self._chunks[chunk.digest] = chunk
                self._chunks.move_to_end(chunk.digest)
            while len(self._chunks) > self._capacity:
                self._chunks.popitem(last=False)
                self._finder = None

    def split(self, text: str) -> list[str | Chunk]:
        """`text` with the chunks in it told apart, each with `recovered=True`; the pieces spell `text` exactly.

        A chunk is found only with the blank line behind it that every chunk in a prompt has: what is sent stays the
        same, character by character. Of texts that overlap, the one that begins first is taken, of those that begin
        together the longest. The time is linear in the length of `text` (Aho-Corasick).
        """
        finder, chunks = self._search()
        if finder is None:
            return [text] if text else []
        parts: list[str | Chunk] = []
        done = 0
        for number, start, stop in finder.find_matches_as_indexes(text):
            parts += _text_behind(parts, text[done:start])
            parts.append(replace(chunks[number], recovered=True))
            done = stop
        return parts + _text_behind(parts, text[done:])

    def _search(self) -> tuple[AhoCorasick | None, list[Chunk]]:
        from ahocorasick_rs import AhoCorasick, Implementation, MatchKind

        with self._lock:
            if self._finder is None and self._chunks:
                self._listed = list(self._chunks)
                patterns = [chunk.text + JOINER for chunk in self._chunks.values()]
                self._finder = AhoCorasick(
                    patterns,
                    matchkind=MatchKind.LeftmostLongest,
                    implementation=Implementation.NoncontiguousNFA,  # the quickest to build
                )
            return self._finder, [self._chunks[digest] for digest in self._listed] if self._finder is not None else []


class RecentByNamespace:
    """At most `capacity` namespaces, those used last. Copies of a model share one, in any number of
    threads."""

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


def _text_behind(parts: list[str | Chunk], text: str) -> list[str]:
    """`text` as a part; a prompt leaves out one joiner behind a chunk, so another one is given to it."""
    if parts and text.startswith(JOINER):
        return [JOINER + text]
    return [text] if text else []
