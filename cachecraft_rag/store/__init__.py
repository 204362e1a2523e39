"""Where chunk KV is kept: keys and index decide (no torch), `memory` holds the tensors."""

from cachecraft_rag.store.index import Entry, IndexStats, KvIndex
from cachecraft_rag.store.keys import KeyMaker

__all__ = ["Entry", "IndexStats", "KeyMaker", "KvIndex"]
