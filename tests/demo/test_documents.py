import pytest

from cachecraft_rag.demo.defaults import handbook_folder
from cachecraft_rag.demo.documents import MAX_WORDS, load_folder, load_lines, split_document
from cachecraft_rag.errors import InvalidInput

MANUAL = """# The Manual

Read this first.

## Power

It runs on batteries.

### Which ones

AA cells.

## Code ##

```
## not a heading
# nor this
```
"""


def texts(text, name="manual.md", **options):
    return [chunk.text for chunk in split_document(text, name, **options)]


def test_each_section_is_a_chunk_behind_title_and_heading():
    assert texts(MANUAL) == [
        "The Manual\nRead this first.",
        "The Manual - Power\nIt runs on batteries.\n\n### Which ones\n\nAA cells.",
        "The Manual - Code\n```\n## not a heading\n# nor this\n```",
    ]


def test_title_and_heading_are_metadata():
    assert [chunk.metadata for chunk in split_document(MANUAL, "manual.md")][1] == {
        "title": "The Manual",
        "heading": "Power",
    }


def test_a_document_without_title_is_called_by_its_file():
    assert texts("## One\nfirst", "notes/diary.md") == ["diary - One\nfirst"]


def test_headings_mean_nothing_in_text_files():
    assert texts("## One\nfirst", "diary.txt") == ["diary\n## One\nfirst"]


def test_a_long_section_is_cut_at_paragraph_ends():
    paragraphs = [f"{name} " * 4 for name in "abcde"]
    section = "# T\n## H\n" + "\n\n".join(paragraphs)
    assert texts(section, max_words=8) == [
        "T - H\n" + "\n\n".join(paragraphs[:2]).strip(),
        "T - H\n" + "\n\n".join(paragraphs[2:4]).strip(),
        "T - H\n" + paragraphs[4].strip(),
    ]


def test_a_long_paragraph_is_cut_at_sentence_ends():
    assert texts("One two three. Four five six! Seven.", "a.txt", max_words=4) == [
        "a\nOne two three.",
        "a\nFour five six! Seven.",
    ]


def test_a_long_sentence_is_cut_between_words():
    assert texts("one two three four five", "a.txt", max_words=2) == ["a\none two", "a\nthree four", "a\nfive"]


def test_an_unclosed_code_block_reaches_to_the_end():
    assert texts("# T\n```\n## a\n~~~\n## b") == ["T\n```\n## a\n~~~\n## b"]


def test_a_section_without_text_gives_no_chunk():
    assert texts("# T\n\n## Empty\n\n## Full\ntext") == ["T - Full\ntext"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b" / "two.md").write_text("# Two\ntwo")
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfwith a mark\r\nand a line")
    (tmp_path / "Z.MD").write_text("# Zed\nzed")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    (tmp_path / ".hidden.md").write_text("secret")
    (tmp_path / ".git" / "notes.md").write_text("secret")
    return tmp_path


def test_a_folder_is_read_in_order_of_its_paths(folder):
    chunks = load_folder(folder)
    assert [(chunk.document_id, chunk.text) for chunk in chunks] == [
        ("Z.MD", "Zed\nzed"),
        ("a.txt", "a\nwith a mark\nand a line"),
        ("b/two.md", "Two\ntwo"),
    ]


def test_the_same_folder_elsewhere_gives_the_same_chunks(folder, monkeypatch):
    before = load_folder(folder)
    monkeypatch.chdir(folder.parent)
    assert load_folder(folder.name) == before
    assert [chunk.id for chunk in load_folder(str(folder))] == [chunk.id for chunk in before]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing", None, "does not exist"),
        ("file.md", "text", "is a file"),
        ("empty", {}, "holds no .md or .txt file"),
        ("blank", {"a.md": "# Title only\n"}, "hold no text"),
        ("latin", {"a.txt": "café".encode("latin-1")}, "a.txt is not UTF-8 text .byte 3 is 0xe9"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_it(tmp_path, name, content, message):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        path.mkdir()
        for file, text in content.items():
            (path / file).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidInput, match=message):
        load_folder(path)


def test_the_handbook_is_large_and_its_chunks_fit_the_embedding_model():
    chunks = load_folder(handbook_folder())
    assert len({chunk.document_id for chunk in chunks}) >= 30
    assert len({chunk.id for chunk in chunks}) == len(chunks) > 100
    assert max(len(chunk.text.split()) for chunk in chunks) <= MAX_WORDS + 15


def test_lines_become_chunks_as_they_are(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "One.", "document_id": "a"}\n\n{"text": "Two.", "id": 3}\n')
    assert [(chunk.text, chunk.document_id) for chunk in load_lines(path)] == [("One.", "a"), ("Two.", None)]


def test_a_line_ends_where_a_line_ends_and_not_inside_a_text(tmp_path):
    path = tmp_path / "chunks.jsonl"
    path.write_bytes('{"text": "One\u2028and\x85one."}\r\n{"text": "Two."}'.encode())
    assert [chunk.text for chunk in load_lines(path)] == ["One\u2028and\x85one.", "Two."]


@pytest.mark.parametrize("line", ["{", "[]", '{"document_id": "a"}', '{"text": ""}', '{"text": 3}'])
def test_a_line_that_is_no_chunk_is_named(tmp_path, line):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"text": "One."}\n' + line)
    with pytest.raises(InvalidInput, match="line 2"):
        load_lines(path)


def test_a_file_of_lines_that_is_not_there_or_empty(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        load_lines(tmp_path / "nothing.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(InvalidInput, match="no lines"):
        load_lines(tmp_path / "empty.jsonl")
