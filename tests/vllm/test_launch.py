from types import SimpleNamespace

import pytest

from cachecraft_rag.errors import InvalidInput, StoreError
from cachecraft_rag.vllm.launch import _check_store


def check(store_dir, nodes=1):
    config = SimpleNamespace(parallel_config=SimpleNamespace(nnodes=nodes))
    _check_store(SimpleNamespace(store_dir=store_dir, read_only=False), config)


def test_a_folder_is_tried_out_before_anything_is_loaded(tmp_path):
    check(None, nodes=2)
    check(str(tmp_path / "new"))
    assert (tmp_path / "new").is_dir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be used"):
        check(str(tmp_path / "file" / "below"))


def test_a_folder_on_several_nodes_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"on 2 nodes is not supported: .*; leave store_dir out"):
        check(str(tmp_path), nodes=2)
