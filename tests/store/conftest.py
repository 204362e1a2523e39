"""Entries of random bytes, as the disk tier keeps them: the store itself knows no tensors."""

import os

import numpy as np
import pytest

from cachecraft_rag.store.container import TensorSpec
from cachecraft_rag.store.directory import StoreDirectory
from cachecraft_rag.store.disk import DiskStore
from cachecraft_rag.store.header import EntryHeader

MODEL = "m" * 32
TOKENS = 6


def make_header(key, *, namespace="one", documents=(), tokens=TOKENS, chunk_id="id", model=MODEL):
    return EntryHeader(
        key=key,
        model=model,
        namespace=namespace,
        token_ids=np.arange(tokens, dtype=np.int32),
        cached_at=4,
        chunk_id=chunk_id,
        digest="d" * 64,
        documents=tuple(documents),
        tensors=(TensorSpec("kv", "BF16", (2, 2, tokens, 1, 8)),),
        data_checksum="",
    )


@pytest.fixture
def header():
    return make_header


@pytest.fixture
def open_store(tmp_path):
    """`open_store(capacity_bytes=None, read_only=False)`: the same folder each time."""

    def open_it(capacity_bytes=None, *, read_only=False, model=MODEL):
        return DiskStore(StoreDirectory(tmp_path / "store", capacity_bytes, read_only=read_only), model, "{}\n")

    return open_it


@pytest.fixture
def store(open_store):
    return open_store()


@pytest.fixture
def put():
    """Store an entry of random bytes; returns them."""

    def put_it(store, key, victims=(), **options):
        header = make_header(key, **options)
        data = os.urandom(header.data_bytes)
        store.write(header, [memoryview(data)], victims)
        return data

    return put_it


@pytest.fixture
def get():
    """The bytes of an entry, read back and checked."""

    def get_it(store, key, tokens=TOKENS):
        buffer = bytearray(make_header(key, tokens=tokens).data_bytes)
        store.read(key, [memoryview(buffer)])
        return bytes(buffer)

    return get_it
