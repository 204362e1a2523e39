"""Entries on disk: whole or a reason, private, and never a crash."""

import json
import os
import struct
from pathlib import Path

import pytest

from cachecraft_rag.errors import StoreError
from cachecraft_rag.store.directory import StoreDirectory
from cachecraft_rag.store.disk import Unreadable

KEY = "a" * 64


def test_what_was_written_is_read_and_says_what_it_is(store, header, put, get):
    data = put(store, KEY, documents=["b.md", "a.md"], namespace="ten änt")
    assert get(store, KEY) == data
    found = store.header(KEY)
    wanted = header(KEY, documents=["a.md", "b.md"], namespace="ten änt")
    assert found.token_ids.tolist() == wanted.token_ids.tolist()
    for name in ("key", "model", "namespace", "cached_at", "chunk_id", "digest", "documents", "tensors"):
        assert getattr(found, name) == getattr(wanted, name)


def test_any_safetensors_reader_opens_it(store, put):
    safetensors = pytest.importorskip("safetensors")
    data = put(store, KEY)
    with safetensors.safe_open(store.path(KEY), "pt") as file:
        assert list(file.keys()) == ["kv"]
        tensor = file.get_tensor("kv")
        assert file.metadata()["key"] == KEY
    import torch

    assert tensor.shape == (2, 2, 6, 1, 8)
    assert bytes(tensor.view(torch.uint8).numpy()) == data


def test_only_the_owner_may_read(store, put):
    put(store, KEY)
    store.change_owners(KEY, add=["x"])
    for path in [store.directory.root, *store.directory.root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_another_process_finds_it_by_scanning(store, open_store, put):
    for key in ("a", "b", "c"):
        put(store, key)
    os.utime(store.path("b"), (0, 0))
    assert [found.key for found in open_store().scan()] == ["b", "a", "c"]


def damaged(path: Path, kind: str) -> None:
    content = bytearray(path.read_bytes())
    if kind == "truncated":
        content = content[: len(content) // 2]
    elif kind == "cut within the header":
        content = content[:60]
    elif kind == "empty":
        content = bytearray()
    elif kind == "zeroed":
        content = bytearray(len(content))
    elif kind == "longer":
        content += b"\0"
    elif kind == "last bit flipped":
        content[-1] ^= 1
    elif kind == "token id flipped":
        at = content.index(b'"token_ids":"') + 14
        content[at] = ord("B") if content[at] != ord("B") else ord("C")
    elif kind == "huge header":
        content[:8] = struct.pack("<Q", 1 << 60)
    elif kind == "another version":
        content = content.replace(b'"version":"1"', b'"version":"9"')
    elif kind == "not ours":
        content = content.replace(b'"format":"cachecraft-kv"', b'"format":"cachecraft-xy"')
    path.write_bytes(content)


KINDS = {
    "truncated": "damaged",
    "cut within the header": "damaged",
    "empty": "damaged",
    "zeroed": "damaged",
    "longer": "damaged",
    "last bit flipped": "checksum",
    "token id flipped": "checksum",
    "huge header": "damaged",
    "another version": "another version: its format has version '9'",
    "not ours": "damaged",
}


@pytest.mark.parametrize(("kind", "reason"), KINDS.items())
def test_a_damaged_file_has_a_reason(store, put, get, kind, reason):
    put(store, KEY)
    damaged(store.path(KEY), kind)
    with pytest.raises(Unreadable, match=reason):
        get(store, KEY)


def test_what_cannot_be_opened_has_a_reason(store, put, get):
    with pytest.raises(Unreadable, match="vanished"):
        get(store, KEY)
    store.path(KEY).mkdir()
    with pytest.raises(Unreadable, match="cannot be read"):
        get(store, KEY)


def test_no_flipped_bit_goes_unnoticed(store, put, get):
    put(store, KEY)
    path = store.path(KEY)
    good = path.read_bytes()
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << at % 8)]) + good[at + 1 :])
        with pytest.raises(Unreadable):
            get(store, KEY)
    path.write_bytes(good)
    get(store, KEY)


def test_a_file_under_another_name_is_not_taken_for_it(store, put, get):
    put(store, KEY)
    store.path(KEY).rename(store.path("b" * 64))
    with pytest.raises(Unreadable, match="another entry"):
        get(store, "b" * 64)


def test_the_scan_passes_damaged_files_over_and_says_so(store, put, caplog):
    for key in ("a", "b", "c"):
        put(store, key)
    damaged(store.path("b"), "cut within the header")
    assert [found.key for found in store.scan()] == ["a", "c"]
    assert "cut off" in caplog.text
    assert "b.safetensors" in caplog.text


def test_a_buffer_of_another_size_is_refused(store, put, get):
    put(store, KEY)
    with pytest.raises(Unreadable, match="expected"):
        get(store, KEY, tokens=7)


def test_a_failed_write_leaves_nothing(store, header, put, get):
    data = put(store, KEY)
    before = store.directory.used_bytes()
    with pytest.raises(TypeError):
        store.write(header(KEY), [memoryview(b"x" * header(KEY).data_bytes), None])
    assert get(store, KEY) == data
    assert store.directory.used_bytes() == store.directory.recount() == before
    assert not list(store.folder.glob("*.partial"))


def test_writing_again_replaces_it_and_counts_once(store, put, get):
    put(store, KEY)
    used = store.directory.used_bytes()
    data = put(store, KEY)
    assert get(store, KEY) == data
    assert store.directory.used_bytes() == used == store.directory.recount()


def test_owners_change_and_outlive_the_process(store, open_store, put):
    put(store, KEY, documents=["a.md"])
    store.change_owners(KEY, add=["b.md"])
    store.change_owners(KEY, remove=["a.md"], pinned=True)
    store.change_owners("unknown", add=["b.md"])
    assert open_store().header(KEY).documents == ("b.md",)
    assert store.directory.used_bytes() == store.directory.recount()
    assert store.remove([KEY, "unknown"]) == [KEY]
    assert [path.name for path in store.folder.iterdir()] == ["model.json"]
    assert store.directory.used_bytes() == store.directory.recount()


def test_damaged_owners_are_logged_and_the_headers_count(store, put, caplog):
    put(store, KEY, documents=["a.md"])
    store.change_owners(KEY, add=["b.md"])
    next(store.folder.glob("*.owners.json")).write_bytes(b"{")
    assert store.header(KEY).documents == ("a.md",)
    assert "owners.json" in caplog.text


def test_read_only_writes_nothing(store, open_store, put, get):
    data = put(store, KEY)
    os.utime(store.path(KEY), (1, 1))
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in store.directory.root.rglob("*")}
    reader = open_store(read_only=True)
    assert get(reader, KEY) == data
    assert len(list(reader.scan())) == 1
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in store.directory.root.rglob("*")} == before


def test_read_only_without_a_store_is_an_error_that_names_it(tmp_path):
    with pytest.raises(StoreError, match="nowhere"):
        StoreDirectory(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()


def test_a_file_in_place_of_the_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="folder"):
        StoreDirectory(tmp_path / "file")


def test_models_are_apart_and_described(open_store, put):
    put(open_store(), KEY)
    other = open_store(model="n" * 32)
    assert list(other.scan()) == []
    assert json.loads((other.folder / "model.json").read_text()) == {}
