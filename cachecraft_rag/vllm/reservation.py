"""Room in the index for a piece that a request will compute."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cachecraft_rag.store import Entry, KvIndex
from cachecraft_rag.store.entry import EntrySize
from cachecraft_rag.store.seen import SeenContext


def reserve_piece(
    index: KvIndex,
    size: EntrySize,
    key: str,
    namespace: str,
    token_ids: npt.NDArray[np.int32],
    start: int,
    identity: tuple[str | None, str | None],
    seen: SeenContext | None = None,
) -> Entry | None:
    """A pending entry for the piece at position `start`, acquired; None where there is no room.

    `identity`: chunk id and digest, None for the head; `seen`: what a variant is computed behind.
    """
    chunk_id, digest = identity
    entry = index.reserve(
        key,
        namespace=namespace,
        token_ids=token_ids.copy(),  # the prompt itself is not kept alive
        nbytes=size.of(token_ids.size),
        cached_at=start,
        chunk_id=chunk_id,
        digest=digest,
        seen=seen,
    )
    if entry is not None:
        index.acquire(entry)
    return entry
