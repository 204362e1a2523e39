"""Where chunk KV is kept: keys and index decide (no torch), `memory` holds the tensors."""

from cachecraft_rag.store.entry import Entry, IndexStats
from cachecraft_rag.store.index import KvIndex
from cachecraft_rag.store.keys import KeyMaker

__all__ = ["Entry", "IndexStats", "KeyMaker", "KvIndex"]
