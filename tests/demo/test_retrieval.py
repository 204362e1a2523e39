import builtins
import zlib

import numpy as np
import pytest

from cachecraft_rag.chunk import Chunk, point_id
from cachecraft_rag.demo import retrieval
from cachecraft_rag.demo.retrieval import Retriever, SentenceEmbedder
from cachecraft_rag.errors import CachecraftError, InvalidInput

pytest.importorskip("qdrant_client")


class WordEmbedder:
    """Counts words by their checksum: texts that share words are near each other."""

    def __init__(self):
        self.embedded = []

    def encode(self, texts):
        self.embedded += texts
        rows = np.zeros((len(texts), 64), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in text.lower().split():
                row[zlib.crc32(word.encode()) % 64] += 1
        return rows


CHUNKS = [
    Chunk("the battery holds twelve volts", "power.md", {"heading": "Battery"}),
    Chunk("a lantern burns amber at night", "light.md"),
    Chunk("rust is the enemy of anchors", "anchor.md"),
]


@pytest.fixture
def retriever():
    with Retriever(WordEmbedder()) as made:
        yield made


def test_the_nearest_chunk_comes_first_with_its_metadata(retriever):
    retriever.add(CHUNKS, progress=False)
    found = retriever.retrieve("how many volts has the battery", 2)
    assert found[0] == CHUNKS[0]
    assert found[0].id == CHUNKS[0].id
    assert found[0].metadata == {"heading": "Battery"}
    assert len(found) == 2


def test_more_than_there_is_gives_all(retriever):
    retriever.add(CHUNKS, progress=False)
    assert len(retriever.retrieve("anything", 50)) == 3


def test_adding_again_embeds_nothing(retriever):
    assert retriever.add(CHUNKS, progress=False) == 3
    embedded = list(retriever._embedder.embedded)
    assert retriever.add([*CHUNKS, *CHUNKS], progress=False) == 0
    assert retriever._embedder.embedded == embedded


def test_many_chunks_take_several_batches(retriever):
    chunks = [Chunk(f"passage number {number}", f"{number % 7}.md") for number in range(retrieval._BATCH * 2 + 3)]
    assert retriever.add(chunks) == len(chunks)
    assert {chunk.id for chunk in retriever.retrieve("passage", len(chunks))} == {chunk.id for chunk in chunks}


def test_one_text_of_two_documents_is_two_points_and_found_once(retriever):
    copies = [Chunk(CHUNKS[0].text, f"copy{number}.md") for number in range(6)]
    assert retriever.add([*CHUNKS, *copies], progress=False) == 9
    found = retriever.retrieve("the battery holds twelve volts", 3)
    assert found[0].text == CHUNKS[0].text
    assert sorted(chunk.id for chunk in found) == sorted(chunk.id for chunk in CHUNKS)


def test_points_are_named_by_source_and_chunk(retriever):
    retriever.add(CHUNKS, progress=False)
    points, _ = retriever._client.scroll(retrieval.COLLECTION, limit=10)
    assert {point.id: point.payload["chunk_id"] for point in points} == {
        point_id(chunk.document_id, chunk.id): chunk.id for chunk in CHUNKS
    }


def test_a_folder_keeps_them_for_the_next_one(tmp_path):
    with Retriever(WordEmbedder(), tmp_path / "db") as first:
        first.add(CHUNKS, progress=False)
    with Retriever(WordEmbedder(), tmp_path / "db") as second:
        assert second.add(CHUNKS, progress=False) == 0
        assert second.retrieve("a lantern at night", 1) == [CHUNKS[1]]


def test_asking_before_adding_or_for_nothing_is_an_error(retriever):
    with pytest.raises(InvalidInput, match="nothing was added"):
        retriever.retrieve("volts", 1)
    with pytest.raises(InvalidInput, match="k=0"):
        retriever.retrieve("volts", 0)


@pytest.mark.parametrize(
    ("package", "make"),
    [("qdrant_client", lambda: Retriever(WordEmbedder())), ("sentence_transformers", SentenceEmbedder)],
)
def test_a_missing_package_names_the_extra(monkeypatch, package, make):
    real = builtins.__import__

    def importing(name, *args, **kwargs):
        if name == package:
            raise ImportError(f"No module named {name!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", importing)
    with pytest.raises(CachecraftError, match=r"cachecraft-rag\[demo\]"):
        make()
