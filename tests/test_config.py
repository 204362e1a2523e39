import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest

from cachecraft_rag.config import EngineConfig, default_recompute_ratio
from cachecraft_rag.errors import InvalidInput

RATIO, STORE = "CACHECRAFT_RECOMPUTE_RATIO", "CACHECRAFT_CPU_STORE_GB"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    monkeypatch.delenv(RATIO, raising=False)
    monkeypatch.delenv(STORE, raising=False)


def test_defaults():
    config = EngineConfig("org/model")
    assert (config.model, config.policy, config.recompute_ratio, config.cpu_store_gb) == ("org/model", None, None, 2)
    assert default_recompute_ratio() == 0.15
    assert config.namespace == "default"
    assert config.enable_prefix_caching
    assert config.vllm_args == {}


def test_environment_overrides_defaults_and_arguments_override_the_environment(monkeypatch):
    monkeypatch.setenv(RATIO, "0.3")
    monkeypatch.setenv(STORE, " 0.5 ")
    assert default_recompute_ratio() == 0.3
    assert EngineConfig("m").cpu_store_gb == 0.5
    config = EngineConfig("m", recompute_ratio=0.0, cpu_store_gb=4)
    assert (config.recompute_ratio, config.cpu_store_gb) == (0.0, 4.0)


def test_empty_variable_counts_as_unset(monkeypatch):
    monkeypatch.setenv(RATIO, "")
    assert default_recompute_ratio() == 0.15


@pytest.mark.parametrize(
    ("variable", "text"),
    [(RATIO, "15%"), (RATIO, "1.5"), (RATIO, "nan"), (STORE, "0"), (STORE, "2GB"), (STORE, "inf"), (STORE, "-1")],
)
def test_malformed_variable_is_named_with_its_value(monkeypatch, variable, text):
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidInput, match=variable) as caught:
        EngineConfig("m")
    assert text.strip("'") in str(caught.value)


def test_malformed_variable_does_no_harm_where_the_argument_is_given(monkeypatch):
    monkeypatch.setenv(RATIO, "15%")
    assert EngineConfig("m", recompute_ratio=0.2).recompute_ratio == 0.2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("model", 3),
        ("dtype", "fp8"),
        ("dtype", ["float32"]),
        ("policy", " "),
        ("recompute_ratio", -0.01),
        ("recompute_ratio", 1.01),
        ("recompute_ratio", float("nan")),
        ("recompute_ratio", True),
        ("recompute_ratio", "0.1"),
        ("min_run", 0),
        ("min_run", 1.5),
        ("min_chunk_tokens", 0),
        ("cpu_store_gb", 0),
        ("cpu_store_gb", float("inf")),
        ("namespace", ""),
        ("namespace", "a\nb"),
        ("namespace", "n" * 129),
        ("default_system", 1),
        ("max_model_len", 0),
        ("max_num_batched_tokens", True),
        ("max_num_seqs", -1),
        ("kv_cache_gb", 0),
        ("device_store_gb", 0),
        ("device_store_gb", "1"),
        ("enable_prefix_caching", 1),
        ("enforce_eager", "yes"),
        ("threads", 0),
        ("store_misses", None),
        ("recompute_bucket", 0),
        ("namespace_share", 0.0),
        ("namespace_share", 1.5),
        ("store_dir", " "),
        ("store_dir", 5),
        ("disk_store_gb", 0),
        ("read_only", 1),
        ("compress", "int4"),
        ("compress", 1),
        ("compress", ["int8"]),
        ("seed", -1),
        ("seed", 2**32),
        ("vllm_args", [("block_size", 64)]),
        ("chat_template_kwargs", "enable_thinking"),
    ],
)
def test_invalid_value_names_field_value_and_way_out(name, value):
    with pytest.raises(InvalidInput, match=rf"^{name}=.*: give ") as caught:
        EngineConfig(**{"model": "m", name: value})
    assert repr(value) in str(caught.value)


def test_vllm_args_may_not_override_own_options():
    with pytest.raises(InvalidInput, match=r"vllm_args: dtype='float16'.*set EngineConfig\(dtype=\.\.\.\)"):
        EngineConfig("m", vllm_args={"dtype": "float16"})
    with pytest.raises(InvalidInput, match="block-size"):
        EngineConfig("m", vllm_args={"block-size": 64})


def test_later_changes_to_the_callers_dict_do_not_reach_the_config():
    args = {"block_size": 64}
    config = EngineConfig("m", vllm_args=args)
    args["block_size"] = 32
    assert config.vllm_args == {"block_size": 64}


def test_an_unknown_eviction_names_those_there_are():
    with pytest.raises(InvalidInput, match=r"eviction='best'.*lru, score"):
        EngineConfig("m", eviction="best")  # type: ignore[arg-type]


def test_the_store_comes_from_the_environment_unless_it_is_given(monkeypatch):
    assert EngineConfig("m").store_dir is None
    monkeypatch.setenv("CACHECRAFT_STORE_DIR", "/somewhere")
    monkeypatch.setenv("CACHECRAFT_DISK_STORE_GB", "3.5")
    assert (EngineConfig("m").store_dir, EngineConfig("m").disk_store_gb) == ("/somewhere", 3.5)
    assert EngineConfig("m", store_dir=Path("/other")).store_dir == "/other"
    monkeypatch.setenv("CACHECRAFT_STORE_DIR", "")
    assert EngineConfig("m").store_dir is None


def test_paths_and_numpy_numbers_are_taken_as_plain_values():
    config = EngineConfig(Path("/models/m"), recompute_ratio=np.float32(0.5), min_run=np.int64(4))  # type: ignore[arg-type]
    assert config.model == "/models/m"
    assert type(config.recompute_ratio) is float
    assert type(config.min_run) is int


def test_config_is_frozen_hashable_picklable_and_replaceable():
    config = EngineConfig("m", vllm_args={"block_size": 64})
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.seed = 1  # type: ignore[misc]
    assert hash(config) == hash(EngineConfig("m", vllm_args={"block_size": 64}))
    assert pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, recompute_ratio=1).recompute_ratio == 1.0
    with pytest.raises(InvalidInput):
        dataclasses.replace(config, recompute_ratio=2)
