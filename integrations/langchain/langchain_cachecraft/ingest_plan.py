"""What an ingestion has to do: decided from the documents and the state alone."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from langchain_core.documents import Document

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from langchain_cachecraft.documents import chunk_of, document_id_of, with_chunk_id
from langchain_cachecraft.ingest_state import IngestState, Point, point_of


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """`pieces`: all chunks of the documents that were given, by the id of their point, each once.

    `changed`: the ids of those that the state doesn't know like this. `gone_points`: to be taken out of the vector
    store. `gone_chunks`: which no document has any more. `gone_documents`: that have no chunk any more. `meanwhile`:
    the state until all is done, which knows every point that may be there. `state`: when all is done.
    """

    pieces: dict[str, tuple[Document, Chunk]]
    changed: frozenset[str]
    gone_points: tuple[str, ...]
    gone_chunks: tuple[str, ...]
    gone_documents: tuple[str, ...]
    meanwhile: IngestState
    state: IngestState

    def to_add(self, stored: Iterable[str]) -> list[Document]:
        """What must be embedded. `stored`: which of `unchanged` really are in the vector store."""
        known = set(stored)
        return [document for key, (document, _) in self.pieces.items() if key not in known]

    @property
    def unchanged(self) -> list[str]:
        return [key for key in self.pieces if key not in self.changed]

    @property
    def chunks(self) -> list[Chunk]:
        return [chunk for _, chunk in self.pieces.values()]


def plan_ingestion(
    documents: Sequence[Document], pieces: Iterable[Document], before: IngestState, *, full: bool
) -> IngestPlan:
    """`pieces`: what the splitter made of `documents`. `full`: there are no other documents than these.

    Raises `InvalidInput` for a document of unknown source: it could not be told from others when it changes.
    """
    given = dict.fromkeys(_name(document) for document in documents)
    placed: dict[str, tuple[Document, Chunk]] = {}
    now: dict[str, dict[str, Point]] = {name: {} for name in given}
    for piece in pieces:
        chunk = chunk_of(piece)
        document = with_chunk_id(piece, chunk)
        key = str(document.id)
        placed.setdefault(key, (document, chunk))
        now.setdefault(_name(piece), {})[key] = point_of(placed[key][0], chunk.id)
    kept = {} if full else {name: points for name, points in before.documents.items() if name not in now}
    after = IngestState({**kept, **{name: points for name, points in now.items() if points}})
    old = {key: point for points in before.documents.values() for key, point in points.items()}
    new = {key: point for points in after.documents.values() for key, point in points.items()}
    changed = frozenset(key for key in placed if old.get(key) != new[key])
    return IngestPlan(
        pieces=placed,
        changed=changed,
        gone_points=tuple(key for key in old if key not in new),
        gone_chunks=tuple(sorted(before.chunk_ids() - after.chunk_ids())),
        gone_documents=tuple(name for name in before.documents if name not in after.documents),
        meanwhile=_union(before, after, changed | (old.keys() - new.keys())),
        state=after,
    )


def _union(before: IngestState, after: IngestState, touched: Collection[str]) -> IngestState:
    """`touched`: keys of the points that are about to be added, changed or taken out."""
    documents: dict[str, dict[str, Point]] = {}
    for state in (before, after):
        for name, points in state.documents.items():
            documents.setdefault(name, {}).update(
                (key, Point(point.chunk_id, "") if key in touched else point) for key, point in points.items()
            )
    return IngestState(documents)


def _name(document: Document) -> str:
    name = document_id_of(document)
    if name is None:
        raise InvalidInput(
            f"the document {document.page_content!r:.60} has neither 'document_id' nor 'source' in its metadata: give "
            "it one, so that it is known again when it changes"
        )
    return name
