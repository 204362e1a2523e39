"""From a folder of Markdown and text files to chunks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput

SUFFIXES = (".md", ".txt")
MAX_WORDS = 190  # about 256 tokens of English, which is what the embedding model reads

_FENCE = re.compile(r" {0,3}(```|~~~)")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def load_folder(folder: str | Path, *, max_words: int = MAX_WORDS) -> list[Chunk]:
    """The chunks of every .md and .txt file below `folder`, in the order of their paths; hidden files are left out.

    A Markdown file is cut at its `## ` headings, and each chunk begins with "title - heading". Longer sections are cut
    at paragraph ends. `document_id` is the file's path relative to `folder`. The same files give the same chunks.
    Raises `InvalidInput` where there is no such folder or nothing to read in it.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        what = "is a file, not a folder" if root.exists() else "does not exist"
        raise InvalidInput(f"the folder of documents {str(root)!r} {what}: give a folder of .md and .txt files")
    relative = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.suffix.lower() in SUFFIXES and path.is_file()
    )
    visible = [name for name in relative if not any(part.startswith(".") for part in name.split("/"))]
    chunks = [
        chunk for name in visible for chunk in split_document(_read(root / name), name, max_words=max_words)
    ]  # fmt: skip
    if not chunks:
        found = f"{len(visible)} .md and .txt files there hold no text" if visible else "it holds no .md or .txt file"
        raise InvalidInput(f"nothing to read in the folder {str(root)!r}: {found}")
    return chunks


def load_lines(path: Path) -> list[Chunk]:
    """The chunks of a file of JSON lines: `text`, and `document_id` where there is one. Nothing is split."""
    chunks: list[Chunk] = []
    for number, line in enumerate(_read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            document = fields.get("document_id")
            chunks.append(Chunk(fields["text"], None if document is None else str(document)))
        except (ValueError, KeyError, AttributeError) as error:
            raise InvalidInput(
                f'line {number} of {path} is not a chunk ({error!r}): give one JSON object a line, {{"text": ...}}'
            ) from error
    if not chunks:
        raise InvalidInput(f"{path} holds no lines: give one JSON object a line")
    return chunks


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")  # str.splitlines() cuts texts at U+2028, too
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read ({error}): give a file of JSON lines") from error


def split_document(text: str, document_id: str, *, max_words: int = MAX_WORDS) -> list[Chunk]:
    """The chunks of one document; `document_id` ends in the suffix that says how to read it."""
    path = Path(document_id)
    if path.suffix.lower() == ".md":
        title, sections = _markdown_sections(text, path.stem)
    else:
        title, sections = path.stem, [("", text)]
    chunks = []
    for heading, body in sections:
        head = f"{title} - {heading}" if heading else title
        chunks += [
            Chunk(f"{head}\n{piece}", document_id, {"title": title, "heading": heading})
            for piece in _pieces(body, max_words)
        ]
    return chunks


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path} is not UTF-8 text (byte {error.start} is {error.object[error.start]:#04x}): "
            "convert it, or leave it out of the folder"
        ) from None


def _markdown_sections(text: str, title: str) -> tuple[str, list[tuple[str, str]]]:
    """The document's title and its (heading, body) in order; headings inside code blocks are text."""
    sections: list[tuple[str, list[str]]] = [("", [])]
    titled, fence = False, ""
    for line in text.splitlines():
        marker = _FENCE.match(line)
        if marker and fence in ("", marker[1]):
            fence = "" if fence else marker[1]
        elif not fence and not titled and line.startswith("# "):
            title, titled = _heading(line) or title, True
            continue
        elif not fence and line.startswith("## "):
            sections.append((_heading(line), []))
            continue
        sections[-1][1].append(line)
    return title, [(heading, "\n".join(lines)) for heading, lines in sections]


def _heading(line: str) -> str:
    return line.lstrip("#").strip().rstrip("#").strip()


def _pieces(body: str, max_words: int) -> Iterator[str]:
    """`body` in pieces of whole paragraphs with at most `max_words` words; a longer paragraph is cut itself."""
    blocks = [
        block
        for paragraph in re.split(r"\n\s*\n", body.strip())
        if paragraph.strip()
        for block in _cut(paragraph.strip("\n"), max_words)
    ]
    yield from _packed(blocks, "\n\n", max_words)


def _cut(paragraph: str, max_words: int) -> Iterator[str]:
    """A paragraph as it is, or cut at sentence ends, or else between words."""
    if _words(paragraph) <= max_words:
        yield paragraph
        return
    parts = []
    for sentence in _SENTENCE_END.split(paragraph):
        if _words(sentence) <= max_words:
            parts.append(sentence)
        else:
            words = sentence.split()
            parts += [" ".join(words[first : first + max_words]) for first in range(0, len(words), max_words)]
    yield from _packed(parts, " ", max_words)


def _packed(parts: Sequence[str], joiner: str, max_words: int) -> Iterator[str]:
    """Neighbouring parts joined while they fit; no part is longer than `max_words`."""
    taken: list[str] = []
    words = 0
    for part in parts:
        if taken and words + _words(part) > max_words:
            yield joiner.join(taken)
            taken, words = [], 0
        taken.append(part)
        words += _words(part)
    if taken:
        yield joiner.join(taken)


def _words(text: str) -> int:
    return len(text.split())
