"""Which documents a stored chunk belongs to and whether it is pinned, in a small file beside the entry's.

The entry's own file never changes. Its header says which documents it had when it was written; this file, where there
is one, says it better.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)

OWNERS_SUFFIX = ".owners.json"


@dataclass(frozen=True, slots=True)
class Owners:
    """`documents` None where the entry's own header has the last word."""

    documents: frozenset[str] | None = None
    pinned: bool = False

    def to_bytes(self) -> bytes:
        documents = None if self.documents is None else sorted(self.documents)
        return json.dumps({"documents": documents, "pinned": self.pinned}).encode()


def owners_path(entry: Path) -> Path:
    return entry.with_name(entry.name.partition(".")[0] + OWNERS_SUFFIX)


def read_owners(entry: Path) -> Owners:
    """A damaged file counts as none, and is logged."""
    path = owners_path(entry)
    try:
        return parse_owners(path.read_bytes())
    except FileNotFoundError:
        return Owners()
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be read (%r); the documents its entry was written with count", path, error)
        return Owners()


def parse_owners(content: bytes) -> Owners:
    """ValueError where it is garbled."""
    try:
        fields = json.loads(content)
        documents = fields["documents"]
        return Owners(None if documents is None else frozenset(map(str, documents)), bool(fields["pinned"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"it lacks or garbles {error}") from error
