"""Changes of the disk that the index has decided and nobody has carried out yet."""

from __future__ import annotations

from collections import Counter

from cachecraft_rag.store.changes import Change, ChangeOwners, Remove
from cachecraft_rag.store.entry import Entry


class PendingChanges:
    """In the order of the decisions. Keys whose files are to go are remembered until all that was ordered is done."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._leaving: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._changes)

    def take(self) -> list[Change]:
        """All so far, each once."""
        changes, self._changes = self._changes, []
        return changes

    def add(self, change: Change) -> None:
        self._changes.append(change)

    def remove(self, key: str, *, damaged: bool = False) -> None:
        """There is, or was, a file of that key; it goes."""
        self._changes.append(Remove(key, damaged))
        self._leaving[key] += 1

    def removed(self, key: str) -> None:
        """One order to remove it was carried out."""
        self._leaving[key] -= 1
        if self._leaving[key] <= 0:
            del self._leaving[key]

    def is_leaving(self, key: str) -> bool:
        """Whether a file of that key is still there, but was deleted or found damaged."""
        return key in self._leaving

    def document(self, entry: Entry, document_id: str, *, owns: bool) -> None:
        """A document owns the entry from now on, or does not any more; of no interest where there is no file."""
        if entry.on_disk:
            documents = (document_id,)
            self.add(ChangeOwners(entry.key, add=documents) if owns else ChangeOwners(entry.key, remove=documents))

    def pin(self, entry: Entry) -> None:
        """Its pin has changed."""
        if entry.on_disk:
            self.add(ChangeOwners(entry.key, pinned=entry.pinned))
