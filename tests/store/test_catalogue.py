"""Listing, checking, removing and moving a store's contents, without an engine."""

import io
import os
import tarfile

import pytest

from cachecraft_rag.errors import InvalidInput, StoreError
from cachecraft_rag.store.archive import export_entries, import_entries
from cachecraft_rag.store.audit import audit, repair
from cachecraft_rag.store.catalogue import Selection, collect_garbage, items, remove, summary
from cachecraft_rag.store.directory import StoreDirectory
from cachecraft_rag.store.disk import DiskStore

KEYS = {name: name * 64 for name in "abcd"}


@pytest.fixture
def full(open_store, put):
    store = open_store(model="e" * 64)
    for age, (name, documents, namespace) in enumerate(
        [("a", ["x.md"], "one"), ("b", ["x.md", "y.md"], "one"), ("c", ["x.md"], "two"), ("d", [], "two")]
    ):
        put(store, KEYS[name], documents=documents, namespace=namespace, chunk_id=f"id-{name}", model=store.model)
        os.utime(store.path(KEYS[name]), (age, age))
    store.change_owners(KEYS["d"], pinned=True)
    return store


def names(store):
    return {header.chunk_id.removeprefix("id-") for header in store.scan()}


def test_items_and_totals(full):
    found = list(items(full.directory))
    assert [item.header.chunk_id for item in found] == ["id-a", "id-b", "id-c", "id-d"]
    assert sum(item.nbytes for item in found) == full.directory.recount() - (full.folder / "model.json").stat().st_size
    totals = summary(full.directory)
    assert {name: (t.chunks, t.pinned, t.documents) for (_, name), t in totals.items()} == {
        "one": (2, 0, {"x.md", "y.md"}),
        "two": (2, 1, {"x.md"}),
    }


def test_what_is_listed_holds_neither_keys_nor_tokens(full):
    (listed,) = [item.to_dict() for item in items(full.directory, Selection(chunks=frozenset(["id-a"])))]
    assert set(listed) == {
        "model",
        "namespace",
        "chunk_id",
        "documents",
        "behind",
        "tokens",
        "bytes",
        "pinned",
        "last_use",
    }
    assert KEYS["a"] not in str(listed)


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection(chunks=frozenset(["id-a", "unknown"])), "bcd"),
        (Selection(namespace="one"), "cd"),
        (Selection(document="x.md", namespace="one"), "bcd"),
        (Selection(document="x.md"), "bd"),
        (Selection(model="ee"), ""),
        (Selection(model="ff"), "abcd"),
    ],
)
def test_removing(full, selection, left):
    removed = remove(full.directory, selection)
    assert names(full) == set(left)
    assert removed.entries == 4 - len(left)
    assert audit(full.directory).faults == ()
    if selection.document and "b" in left:
        assert full.header(KEYS["b"]).documents == (("y.md",) if selection.document == "x.md" else ())


def test_removing_everything_must_be_said(full):
    with pytest.raises(InvalidInput, match="--all"):
        remove(full.directory, Selection())
    assert remove(full.directory, Selection(), everything=True).entries == 4
    assert names(full) == set()


def test_garbage_goes_by_age_and_by_size_but_pins_stay(full):
    (full.folder / "0123.partial").write_bytes(b"half")
    assert collect_garbage(full.directory).to_dict() == {"entries": 0, "other_files": 1, "bytes": 0}
    size = full.path(KEYS["a"]).stat().st_size
    collect_garbage(full.directory, max_bytes=full.directory.recount() - size // 2)
    assert names(full) == {"b", "c", "d"}
    collect_garbage(full.directory, older_than_days=1)
    assert names(full) == {"d"}
    assert audit(full.directory).faults == ()


def test_the_audit_finds_what_is_wrong_and_repairs_it(full):
    assert audit(full.directory).faults == ()
    full.change_owners(KEYS["a"], add=["z.md"])
    path = full.path(KEYS["a"])
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    full.path(KEYS["b"]).write_bytes(b"")
    full.path(KEYS["c"]).unlink()
    (full.folder / "0123.partial").write_bytes(b"half")
    (full.folder / f"{'e' * 64}.owners.json").write_bytes(b"{}")
    found = audit(full.directory)
    reasons = " ".join(map(str, found.faults))
    for part in ("checksum", "ends after 0", "its writer died", "its entry is gone", "were counted"):
        assert part in reasons
    assert found.entries == 3
    repair(full.directory, found)
    assert audit(full.directory).faults == ()
    assert names(full) == {"d"}


def test_an_audit_is_no_use(full):
    before = [item.last_use for item in items(full.directory)]
    audit(full.directory)
    assert [item.last_use for item in items(full.directory)] == before


@pytest.fixture
def other(tmp_path):
    return StoreDirectory(tmp_path / "other")


def test_exported_and_imported_it_is_the_same(full, other, tmp_path, get):
    assert export_entries(full.directory, tmp_path / "out.tar", Selection(namespace="one")) == 2
    assert (tmp_path / "out.tar").stat().st_mode & 0o077 == 0
    result = import_entries(other, tmp_path / "out.tar")
    assert (result.entries, result.present, result.refused) == (2, 0, {})
    store = DiskStore(other, full.model)
    assert names(store) == {"a", "b"}
    assert get(store, KEYS["a"]) == get(full, KEYS["a"])
    assert store.header(KEYS["b"]).documents == ("x.md", "y.md")
    assert (store.folder / "model.json").read_text() == "{}\n"
    assert audit(other).faults == ()
    again = import_entries(other, tmp_path / "out.tar")
    assert (again.entries, again.present) == (0, 2)


def test_pins_and_later_documents_come_along(full, other, tmp_path):
    full.change_owners(KEYS["c"], add=["z.md"])
    export_entries(full.directory, tmp_path / "out.tar", Selection(namespace="two"))
    import_entries(other, tmp_path / "out.tar")
    found = {item.header.chunk_id: item for item in items(other)}
    assert found["id-d"].owners.pinned
    assert found["id-c"].documents == {"x.md", "z.md"}


def test_nothing_but_whole_entries_is_taken(full, other, tmp_path):
    good = full.path(KEYS["a"]).read_bytes()
    model, key = full.model, KEYS["a"]
    members = {
        f"{model}/{key}.safetensors": good[:-1] + bytes([good[-1] ^ 1]),
        f"{model}/{KEYS['b']}.safetensors": good,
        f"../{key}.safetensors": good,
        "/etc/passwd": b"x",
        f"{model}/{KEYS['c']}.safetensors": good[:50],
        f"{model}/{KEYS['d']}.owners.json": b"[]",
    }
    with tarfile.open(tmp_path / "bad.tar", "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo(f"{model}/{'f' * 64}.safetensors")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    result = import_entries(other, tmp_path / "bad.tar")
    assert result.entries == 0
    assert len(result.refused) == 7
    assert list(items(other)) == []
    assert not (tmp_path / f"{key}.safetensors").exists()
    assert audit(other).faults == ()


def test_archives_that_cannot_be_read_or_written(full, other, tmp_path):
    with pytest.raises(InvalidInput, match="nothing of what was selected"):
        export_entries(full.directory, tmp_path / "out.tar", Selection(namespace="three"))
    (tmp_path / "out.tar").write_bytes(b"no tar file at all" * 100)
    with pytest.raises(InvalidInput, match="there already"):
        export_entries(full.directory, tmp_path / "out.tar", Selection())
    with pytest.raises(InvalidInput, match="no whole tar file"):
        import_entries(other, tmp_path / "out.tar")
    with pytest.raises(StoreError, match="failed"):
        import_entries(other, tmp_path / "nothing.tar")
