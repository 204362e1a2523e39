from types import SimpleNamespace

import pytest
import torch

from cachecraft_rag.vllm.identity import entry_size, key_maker
from cachecraft_rag.vllm.settings import ConnectorSettings

SETTINGS = {
    "store_bytes": 1000,
    "min_chunk_tokens": 16,
    "store_misses": True,
    "head_token_ids": (1, 2),
    "tokenizer_fingerprint": "t",
    "weights_fingerprint": "w",
    "secret": "s",
}
MODEL = {
    "hf_text_config": SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
    "revision": None,
    "dtype": torch.bfloat16,
    "quantization": None,
}
SPEC = {"dtype": torch.bfloat16, "num_kv_heads": 3, "head_size": 64}


def cache(layers=30, **changes):
    spec = SimpleNamespace(**{**SPEC, **changes})
    return SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=list(range(layers)), kv_cache_spec=spec)])


def key(settings=None, model=None, cache_config=None):
    config = SimpleNamespace(model_config=SimpleNamespace(**{**MODEL, **(model or {})}))
    made = ConnectorSettings(**{**SETTINGS, **(settings or {})})
    return key_maker(made, config, cache_config or cache()).chunk("tenant", (5, 6, 7))


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": {"tokenizer_fingerprint": "other"}},
        {"settings": {"weights_fingerprint": "other"}},
        {"settings": {"head_token_ids": (1, 2, 3)}},
        {"settings": {"compress": "int8"}},
        {"settings": {"compress": "fp8"}},
        {"model": {"revision": "abc"}},
        {"model": {"dtype": torch.float32}},
        {"model": {"quantization": "awq"}},
        {"model": {"hf_text_config": SimpleNamespace(rope_parameters={"rope_type": "default", "rope_theta": 5e5})}},
        {"model": {"hf_text_config": SimpleNamespace(rope_theta=1e4, rope_scaling={"rope_type": "linear"})}},
        {"cache_config": cache(dtype=torch.float32)},
        {"cache_config": cache(layers=29)},
        {"cache_config": cache(num_kv_heads=4)},
        {"cache_config": cache(head_size=128)},
    ],
    ids=str,
)
def test_whatever_changes_the_numbers_changes_the_key(changed):
    assert key(**changed) != key()


@pytest.mark.parametrize(
    "changed", [{"store_bytes": 5}, {"secret": "x"}, {"min_chunk_tokens": 1}, {"store_misses": False}]
)
def test_what_does_not_change_the_numbers_does_not_change_the_key(changed):
    assert key(settings=changed) == key()


def test_bytes_of_a_token():
    settings, small = ConnectorSettings(**SETTINGS), ConnectorSettings(**SETTINGS, compress="int8")
    numbers = 2 * 30 * 3 * 64
    assert entry_size(settings, cache()).of(10) == 10 * numbers * 2
    assert entry_size(settings, cache(dtype=torch.float32)).of(10) == 10 * numbers * 4
    assert entry_size(small, cache()).of(10) == 10 * numbers + 4 * numbers


def test_settings_travel_through_vllms_configuration():
    settings = ConnectorSettings(**SETTINGS)
    transfer = SimpleNamespace(kv_connector_extra_config={"cachecraft": settings.to_wire()})
    assert ConnectorSettings.from_vllm_config(SimpleNamespace(kv_transfer_config=transfer)) == settings


def test_a_connector_without_its_settings_says_who_fills_them():
    transfer = SimpleNamespace(kv_connector_extra_config={})
    with pytest.raises(ValueError, match="ChunkEngine"):
        ConnectorSettings.from_vllm_config(SimpleNamespace(kv_transfer_config=transfer))
