import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.store import KeyMaker
from cachecraft_rag.store.keys import token_bytes, weights_fingerprint

IDENTITY = {
    "weights": "w",
    "revision": None,
    "tokenizer": "t",
    "dtype": "torch.bfloat16",
    "kv_dtype": "torch.bfloat16",
    "quantization": "None",
    "rope": '{"rope_theta": 10000}',
    "lora": None,
    "layers": 30,
    "kv_heads": 3,
    "head_size": 64,
}
HEAD = (1, 2, 3)
IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)


def maker(head=HEAD, **changes):
    return KeyMaker({**IDENTITY, **changes}, head)


@pytest.mark.parametrize("name", sorted(IDENTITY))
def test_any_change_of_identity_changes_every_key(name):
    changed = maker(**{name: "other"})
    assert changed.chunk("a", (5, 6)) != maker().chunk("a", (5, 6))
    assert changed.head("a", (1, 2)) != maker().head("a", (1, 2))


def test_a_new_field_of_the_identity_changes_the_key():
    assert maker(adapter="x").chunk("a", (5, 6)) != maker().chunk("a", (5, 6))


@pytest.mark.parametrize("head", [(), (1,), (1, 2), (3, 2, 1), (1, 2, 3, 4)])
def test_another_head_changes_the_key(head):
    assert maker(head).chunk("a", (5, 6)) != maker().chunk("a", (5, 6))
    assert maker(head).head("a", (1, 2)) != maker().head("a", (1, 2))


@given(IDS, IDS)
def test_other_token_ids_other_key(ours, theirs):
    assert (maker().chunk("a", ours) == maker().chunk("a", theirs)) == (ours == theirs)


@given(st.text(max_size=8), st.text(max_size=8), IDS)
def test_another_namespace_another_key(ours, theirs, ids):
    assert (maker().chunk(ours, ids) == maker().chunk(theirs, ids)) == (ours == theirs)
    assert (maker().head(ours, (1, 2)) == maker().head(theirs, (1, 2))) == (ours == theirs)


@given(IDS, IDS)
def test_tokens_do_not_move_between_head_and_chunk(head, ids):
    assert maker(head).chunk("a", ids) != maker([*head, ids[0]]).chunk("a", ids[1:])


def test_the_namespace_does_not_run_into_the_token_ids():
    ids = (0x61616161, 7)
    assert maker().chunk("b", ids) != maker().chunk("baaaa", ids[1:])


def test_a_head_is_never_a_chunk():
    assert maker().head("a", (1, 2)) != maker().chunk("a", (1, 2))


@given(IDS, IDS)
def test_other_first_tokens_other_head(ours, theirs):
    assert (maker().head("a", ours) == maker().head("a", theirs)) == (ours == theirs)


@given(IDS)
def test_keys_do_not_depend_on_the_container_or_on_earlier_keys(ids):
    keys = maker()
    first = keys.chunk("a", ids)
    keys.chunk("b", [*ids, 1])
    assert keys.chunk("a", tuple(ids)) == first
    assert len(first) == 64


def test_the_order_of_the_identity_does_not_matter():
    backwards = KeyMaker(dict(reversed(IDENTITY.items())), HEAD)
    assert backwards.chunk("a", (5, 6)) == maker().chunk("a", (5, 6))


def test_keys_are_the_same_in_every_process():
    program = (
        "from cachecraft_rag.store import KeyMaker; "
        f"keys = KeyMaker({IDENTITY!r}, {HEAD!r}); print(keys.chunk('é', (5, 6)), keys.head('é', (1, 2)))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout.strip()
        for seed in ("0", "1", "777")
    }
    assert outputs == {f"{maker().chunk('é', (5, 6))} {maker().head('é', (1, 2))}"}


def test_token_bytes_are_little_endian_int32():
    assert token_bytes((1, 256)) == b"\x01\0\0\0\0\x01\0\0"


def model_folder(path: Path, weights: bytes, config: str = "{}") -> Path:
    path.mkdir()
    (path / "config.json").write_text(config)
    (path / "model.safetensors").write_bytes(weights)
    return path


def test_the_weights_fingerprint_follows_weights_and_config(tmp_path):
    weights = bytes(range(256)) * 4096
    same = weights_fingerprint(model_folder(tmp_path / "a", weights))
    assert weights_fingerprint(model_folder(tmp_path / "b", weights)) == same
    assert weights_fingerprint(model_folder(tmp_path / "c", weights, '{"x": 1}')) != same
    assert weights_fingerprint(model_folder(tmp_path / "d", weights + b"x")) != same
    assert weights_fingerprint(model_folder(tmp_path / "e", b"x" + weights[1:])) != same


@pytest.mark.parametrize("position", [0, 70_000, 500_000, 1_048_575])
def test_a_changed_byte_of_a_small_file_is_seen_anywhere(tmp_path, position):
    weights = bytearray(1 << 20)
    before = weights_fingerprint(model_folder(tmp_path / "a", bytes(weights)))
    weights[position] = 1
    assert weights_fingerprint(model_folder(tmp_path / "b", bytes(weights))) != before


def test_a_renamed_weight_file_changes_the_fingerprint(tmp_path):
    folder = model_folder(tmp_path / "a", b"weights")
    before = weights_fingerprint(folder)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    assert weights_fingerprint(folder) != before
