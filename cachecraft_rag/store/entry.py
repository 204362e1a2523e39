"""What the index knows of one stored piece, and what it says of all."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from cachecraft_rag.store.seen import SeenContext


@dataclass(frozen=True, slots=True)
class EntrySize:
    """Bytes of stored KV."""

    per_token: int
    per_entry: int = 0

    def of(self, tokens: int) -> int:
        return self.per_entry + tokens * self.per_token


@dataclass(slots=True, eq=False)
class Entry:
    """One stored piece of KV.

    `handle`: names its tensors in memory, None where it is on disk only; `cached_at`: the position of its first token
    when it was computed; `seen`: what a variant was computed behind, None for canonical KV; `on_disk`: a file has it,
    or is being written; `users`: plans in flight that read it, and reads and writes of its file; `rank` belongs to the
    eviction policy.
    """

    key: str
    handle: int | None
    namespace: str
    token_ids: npt.NDArray[np.int32]
    nbytes: int
    cached_at: int
    chunk_id: str | None
    digest: str | None
    documents: set[str] = field(default_factory=set)
    ready: bool = False
    on_disk: bool = False
    pinned: bool = False
    users: int = 0
    rank: float = -math.inf
    seen: SeenContext | None = None

    @property
    def file_bytes(self) -> int:
        """About what its file takes, header included, and rather more than less."""
        header = 6 * self.token_ids.size + 1024
        if self.seen is not None:
            header += 6 * self.token_ids.size + 128 * len(self.seen.keys)
        return self.nbytes + header


@dataclass(frozen=True, slots=True)
class IndexStats:
    """Counters since the start, and what is stored now (bytes in memory, chunks and tokens in any tier).

    `chunks` counts canonical KV, `variants` what was computed behind other chunks, `tokens` all of it with the head's.
    `evicted`: left the store; `demoted`, `promoted`: left memory for disk, and back. Counters are None for one
    namespace: they would tell of the others.
    """

    capacity_bytes: int
    used_bytes: int
    chunks: int
    chunks_in_memory: int
    chunks_on_disk: int
    variants: int
    tokens: int
    pinned: int
    stored: int | None
    evicted: int | None
    demoted: int | None
    promoted: int | None
    deleted: int | None
    rejected: int | None


def may_leave_memory(entry: Entry) -> bool:
    return entry.handle is not None and entry.ready and not entry.pinned and entry.users == 0


def may_leave_disk(entry: Entry) -> bool:
    return entry.on_disk and not entry.pinned and entry.users == 0
