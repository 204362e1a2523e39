"""What was ingested before: for each document its points in the vector store."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

from cachecraft_rag.errors import InvalidInput
from langchain_cachecraft.documents import SOURCE

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Point:
    """One chunk of a document in the vector store.

    `metadata`: sha256 of what was stored beside the text, without the source, which is spelled in many ways; "" while
    it isn't known what the vector store has.
    """

    chunk_id: str
    metadata: str


@dataclass(slots=True)
class IngestState:
    """`documents`: document id to its points by their ids."""

    documents: dict[str, dict[str, Point]] = field(default_factory=dict)

    @classmethod
    def load(cls, path: Path | None) -> IngestState:
        """Raises `InvalidInput` for a file that holds anything else."""
        if path is None or not path.exists():
            return cls()
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] != _VERSION:
                raise ValueError(f"its version is {content['version']!r}, not {_VERSION}")
            return cls(
                {name: {key: Point(**point) for key, point in points.items()} for name, points in _items(content)}
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InvalidInput(
                f"{path} is not the state of an ingestion ({type(error).__name__}: {error}); remove it, and everything "
                "is ingested anew, or give another path"
            ) from error

    def save(self, path: Path | None) -> None:
        """In one step: the file is the old or the new one, whatever happens."""
        if path is None:
            return
        documents = {
            name: {key: {"chunk_id": point.chunk_id, "metadata": point.metadata} for key, point in points.items()}
            for name, points in self.documents.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump({"version": _VERSION, "documents": documents}, file, ensure_ascii=False)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def chunk_ids(self) -> set[str]:
        return {point.chunk_id for points in self.documents.values() for point in points.values()}


def point_of(document: Document, chunk_id: str) -> Point:
    said = {name: value for name, value in document.metadata.items() if name != SOURCE}
    text = json.dumps(said, sort_keys=True, default=str, ensure_ascii=False)
    return Point(chunk_id, hashlib.sha256(text.encode()).hexdigest())


def _items(content: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, dict[str, str]]]]:
    items: Iterable[tuple[str, dict[str, dict[str, str]]]] = content["documents"].items()
    return items
