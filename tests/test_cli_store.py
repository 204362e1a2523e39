import json

import numpy as np
import pytest
from typer.testing import CliRunner

from cachecraft_rag.cli import app
from cachecraft_rag.store.container import TensorSpec
from cachecraft_rag.store.directory import StoreDirectory
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.header import EntryHeader

MODEL = "e" * 64


@pytest.fixture
def invoke():
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


@pytest.fixture
def root(tmp_path):
    store = DiskStore(StoreDirectory(tmp_path / "store"), MODEL, "{}\n")
    for number, namespace in enumerate(["one", "one", "two"]):
        header = EntryHeader(
            key=str(number) * 64,
            model=MODEL,
            namespace=namespace,
            token_ids=np.arange(5, dtype=np.int32),
            cached_at=0,
            chunk_id=f"id-{number}",
            digest=None,
            documents=("a.md",),
            tensors=(TensorSpec("kv", "F32", (1, 2, 5, 1, 4)),),
            data_checksum="",
        )
        store.write(header, [memoryview(bytes(header.data_bytes))])
    return store.directory.root


def test_listing(invoke, root):
    result = invoke("store", "ls", root)
    assert result.exit_code == 0
    for part in ("id-0", "id-2", "a.md", "one", "two", MODEL[:8]):
        assert part in result.output
    listed = json.loads(invoke("store", "ls", root, "--namespace", "two", "--json").output)
    assert [line["chunk_id"] for line in listed] == ["id-2"]


def test_sums(invoke, root):
    assert "MiB in all" in invoke("store", "stats", root).output
    sums = json.loads(invoke("store", "stats", root, "--json").output)
    assert [(line["namespace"], line["chunks"], line["tokens"]) for line in sums["contents"]] == [
        ("one", 2, 10),
        ("two", 1, 5),
    ]
    assert sums["bytes"] == StoreDirectory(root).recount()


def test_checking_and_repairing(invoke, root):
    assert invoke("store", "check", root).exit_code == 0
    path = next(root.rglob("0000*.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    result = invoke("store", "check", root)
    assert result.exit_code == 1
    assert "checksum" in result.output
    assert json.loads(invoke("store", "check", root, "--json").output)["entries"] == 3
    assert invoke("store", "check", root, "--repair").exit_code == 0
    assert not path.exists()
    assert "2 entries read, 0 faults" in invoke("store", "check", root).output


def test_removing(invoke, root):
    assert invoke("store", "rm", root).exit_code == 2
    assert json.loads(invoke("store", "rm", root, "--chunk", "id-0", "--json").output)["entries"] == 1
    assert "1 entries" in invoke("store", "rm", root, "--namespace", "two").output
    assert "1 entries" in invoke("store", "rm", root, "--all").output
    assert json.loads(invoke("store", "ls", root, "--json").output) == []


def test_collecting_garbage(invoke, root):
    next(root.glob("*/")).joinpath("0123.partial").write_bytes(b"x")
    assert "0 entries and 1 other" in invoke("store", "gc", root).output
    assert "3 entries" in invoke("store", "gc", root, "--max-gb", 0).output


def test_moving(invoke, root, tmp_path):
    assert "3 entries written" in invoke("store", "export", root, tmp_path / "out.tar").output
    result = invoke("store", "import", tmp_path / "new", tmp_path / "out.tar")
    assert (result.exit_code, result.output) == (0, "3 entries taken, 0 were there, 0 refused\n")
    assert (
        json.loads(invoke("store", "import", tmp_path / "new", tmp_path / "out.tar", "--json").output)["present"] == 3
    )
    assert "3 entries read, 0 faults" in invoke("store", "check", tmp_path / "new").output


@pytest.mark.parametrize("command", ["ls", "stats", "check", "gc", "rm"])
def test_a_folder_that_is_not_there_is_named_and_not_made(invoke, tmp_path, command):
    result = invoke("store", command, tmp_path / "nowhere")
    assert result.exit_code == 2
    assert "nowhere" in result.output
    assert not (tmp_path / "nowhere").exists()


def test_listing_writes_nothing(invoke, root):
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for command in ("ls", "stats"):
        invoke("store", command, root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
