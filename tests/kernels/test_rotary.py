import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecraft_rag.kernels import RotarySpec, UnsupportedRotary, rotary, rotate, unrotate
from cachecraft_rag.kernels.rotary_reference import rotate_reference

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def _spec(head_size=16, rotary_dim=16, neox=True, base=10000.0):
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim
    return RotarySpec(rotary_dim, head_size, neox, base**-exponents)


def _key(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


@pytest.fixture(scope="module")
def vllm_rotary():
    """A maker of vLLM's own rotary modules: ``make(head_size, neox, rope_parameters, dtype, max_position)``."""
    config = pytest.importorskip("vllm.config")
    embedding = pytest.importorskip("vllm.model_executor.layers.rotary_embedding")

    def make(head_size, neox, parameters, dtype, max_position=16384):
        with config.set_current_vllm_config(config.VllmConfig()):
            return embedding.get_rope(head_size, max_position, neox, dict(parameters), dtype=dtype)

    return make


def _native(module, positions, key):
    """``key [tokens, kv_heads, head_size]`` before RoPE, turned by vLLM to absolute positions."""
    flat = key.reshape(key.shape[0], -1)
    turned = module.forward_native(positions, flat.clone(), flat.clone())[1]
    return turned.view(key.shape)


@pytest.mark.parametrize("neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [16, 8])
@pytest.mark.parametrize("delta", [1, -3, 100000, torch.tensor(-77), torch.tensor([5, 0, -5, 9999, 1, -31337, 2])])
def test_equals_complex_reference(neox, rotary_dim, delta):
    spec, key = _spec(16, rotary_dim, neox), _key(3, 7, 2, 16)
    turned = rotate(key, spec, delta)
    torch.testing.assert_close(turned, rotate_reference(key, spec, torch.as_tensor(delta)), rtol=0, atol=1e-11)
    assert torch.equal(turned[..., rotary_dim:], key[..., rotary_dim:])


@pytest.mark.parametrize("shape", [(7, 2, 16), (4, 7, 2, 16), (2, 3, 7, 2, 16), (0, 2, 16), (3, 0, 2, 16)])
@pytest.mark.parametrize("limit", [1, 96, 500, 1 << 19])
@pytest.mark.parametrize("per_token", [False, True])
def test_blocks_of_any_size_cover_everything_once(monkeypatch, shape, limit, per_token):
    monkeypatch.setattr(rotary, "_CPU_BLOCK_ELEMENTS", limit)
    spec, key = _spec(), _key(*shape)
    delta = torch.arange(shape[-3]) * 3 - 4 if per_token else torch.tensor(11)
    torch.testing.assert_close(rotate(key, spec, delta), rotate_reference(key, spec, delta), rtol=0, atol=1e-12)


def test_strided_views_in_place_and_into_a_given_tensor():
    spec, store = _spec(16, 8), _key(4, 2, 7, 3, 16)
    key = store[:, 0]
    expected = rotate_reference(key, spec, torch.tensor(9))
    wide = torch.zeros(4, 7, 2, 3, 16, dtype=torch.float64)
    result = rotate(key, spec, 9, out=wide[:, :, 1])
    assert result.data_ptr() == wide[:, :, 1].data_ptr()
    torch.testing.assert_close(wide[:, :, 1], expected, rtol=0, atol=1e-12)
    assert not wide[:, :, 0].any()
    other = store[:, 1].clone()
    rotate(key, spec, 9, out=key)
    torch.testing.assert_close(store[:, 0], expected, rtol=0, atol=1e-12)
    assert torch.equal(store[:, 1], other)


@pytest.mark.parametrize("delta", [0, 5])
def test_dtype_of_the_result(delta):
    spec, key = _spec(), _key(5, 2, 16, dtype=torch.bfloat16)
    assert rotate(key, spec, delta).dtype == torch.bfloat16
    assert rotate(key, spec, delta, dtype=torch.float32).dtype == torch.float32
    assert rotate(key, spec, delta, out=torch.empty(5, 2, 16, dtype=torch.float16)).dtype == torch.float16
    assert unrotate(key, spec, torch.arange(5)).dtype == torch.float32
    assert unrotate(key.double(), spec, torch.arange(5)).dtype == torch.float64
    assert unrotate(key, spec, torch.arange(5), dtype=torch.bfloat16).dtype == torch.bfloat16


def test_no_move_is_an_exact_copy():
    spec, key = _spec(), _key(5, 2, 16, dtype=torch.bfloat16)
    copy = rotate(key, spec, 0)
    assert torch.equal(copy, key)
    assert copy.data_ptr() != key.data_ptr()
    assert torch.equal(rotate(key, spec, torch.zeros(5, dtype=torch.int32)), key)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_result_is_rounded_once(dtype):
    """Half a unit in the last place of the result, of the exact turn of the stored key."""
    spec, key = _spec(64, 64), _key(4, 50, 3, 64, dtype=dtype)
    delta = torch.arange(50) * 81 - 2000
    exact = rotate_reference(key, spec, delta)
    allowed = exact.abs() * torch.finfo(dtype).eps * 0.505 + 2e-6
    assert ((rotate(key, spec, delta).double() - exact).abs() <= allowed).all()


@pytest.mark.parametrize("neox", [True, False])
def test_unrotated_keys_have_no_position(neox):
    spec, before = _spec(16, 8, neox), _key(2, 6, 2, 16)
    first, second = torch.arange(6) + 1000, torch.tensor([3, 9, 1, 7, 70000, 0], dtype=torch.int32)
    stored = rotate_reference(before, spec, first)
    original = unrotate(stored, spec, first)
    torch.testing.assert_close(original, before, rtol=0, atol=1e-11)
    torch.testing.assert_close(rotate(original, spec, second), rotate_reference(before, spec, second))
    narrow = unrotate(stored.float(), spec, first)
    torch.testing.assert_close(narrow.double(), before, rtol=0, atol=2e-6)


_STEP = st.integers(-200_000, 200_000)


@settings(max_examples=60, deadline=None)
@given(neox=st.booleans(), partial=st.booleans(), deltas=st.lists(st.tuples(_STEP, _STEP), min_size=1, max_size=6))
def test_turns_add_up(neox, partial, deltas):
    spec, key = _spec(16, 8 if partial else 16, neox), _key(2, len(deltas), 3, 16)
    a, b = torch.tensor(deltas).unbind(dim=1)
    torch.testing.assert_close(rotate(rotate(key, spec, a), spec, -a), key, rtol=0, atol=1e-12)
    torch.testing.assert_close(rotate(rotate(key, spec, a), spec, b), rotate(key, spec, a + b), rtol=0, atol=2e-10)
    single = int(a[0])
    torch.testing.assert_close(rotate(key[:, :1], spec, single), rotate(key, spec, a)[:, :1], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("head_size", "neox", "parameters"),
    [
        (64, True, {"rope_theta": 10000.0}),
        (128, True, {"rope_theta": 1000000.0}),
        (64, False, {"rope_theta": 10000.0}),
        (64, True, {"partial_rotary_factor": 0.5}),
        (64, False, {"partial_rotary_factor": 0.25}),
        (64, True, LLAMA3),
        (64, True, {"rope_type": "linear", "factor": 4.0}),
        (64, True, {"rope_type": "ntk", "factor": 4.0}),
        (64, True, {"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.3}),
        (64, True, YARN),
        (64, False, {**YARN, "attention_factor": 1.0}),
    ],
)
def test_moves_keys_where_vllm_would_have_put_them(vllm_rotary, head_size, neox, parameters):
    module = vllm_rotary(head_size, neox, parameters, torch.float64)
    spec = RotarySpec.from_module(module)
    before = _key(40, 2, head_size)
    start, end = torch.arange(40) * 97 + 50, torch.arange(40).flip(0) * 95 + 3
    # vLLM rounds angles to float32: up to 2**-24 of the position, at each of the two ends, and the table as well.
    tolerance = 4 * (int(start.max()) * 2**-23 + 2**-22)
    moved = rotate(_native(module, start, before), spec, end - start)
    torch.testing.assert_close(moved, _native(module, end, before), rtol=0, atol=tolerance)
    back = rotate(moved, spec, start - end)
    torch.testing.assert_close(back, _native(module, start, before), rtol=0, atol=tolerance)
    together = rotate(_native(module, start, before), spec, -50)
    torch.testing.assert_close(together, _native(module, start - 50, before), rtol=0, atol=tolerance)
    placed = rotate(unrotate(_native(module, start, before), spec, start), spec, end)
    torch.testing.assert_close(placed, _native(module, end, before), rtol=0, atol=tolerance)


def test_magnitude_of_yarn_stays_in_the_key(vllm_rotary):
    module = vllm_rotary(64, True, YARN, torch.float64)
    assert module.mscale > 1.1
    before, positions = _key(3, 2, 64), torch.tensor([10, 20, 30])
    original = unrotate(_native(module, positions, before), RotarySpec.from_module(module), positions)
    torch.testing.assert_close(original, before * module.mscale, rtol=0, atol=1e-4)


def test_bfloat16_error_beside_vllm(vllm_rotary):
    """The whole error, with cos and sin that vLLM keeps in bfloat16: a few roundings, whatever the distance."""
    module = vllm_rotary(64, True, {"rope_theta": 100000.0}, torch.bfloat16)
    spec = RotarySpec.from_module(module)
    before = _key(512, 3, 64, dtype=torch.bfloat16)
    for start, end in [(0, 0), (32, 7000), (9000, 16)]:
        captured = _native(module, torch.arange(512) + start, before)
        expected = _native(module, torch.arange(512) + end, before).double()
        moved = rotate(captured, spec, end - start).double()
        assert float((moved - expected).norm() / expected.norm()) < 6e-3
        assert float((moved - expected).abs().max()) < 6 * 2**-8 * float(before.abs().max())


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "dynamic NTK"),
        ({"rope_type": "dynamic", "alpha": 2.0}, "dynamic NTK"),
        ({"mrope_section": [8, 12, 12]}, "M-RoPE"),
        ({**YARN, "rope_type": "deepseek_yarn"}, "not proven"),
        ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, "not proven"),
    ],
)
def test_refuses_what_is_not_proven(vllm_rotary, parameters, reason):
    module = vllm_rotary(64, True, parameters, torch.float32)
    with pytest.raises(UnsupportedRotary, match=reason) as caught:
        RotarySpec.from_module(module)
    assert type(module).__name__ in str(caught.value)


def test_refuses_other_modules_and_subclasses(vllm_rotary):
    module = vllm_rotary(64, True, {}, torch.float32, 512)
    module.__class__ = type("Changed", (type(module),), {})
    with pytest.raises(UnsupportedRotary, match="Changed is not supported"):
        RotarySpec.from_module(module)
    module.__class__ = type(module).__mro__[1]
    RotarySpec.from_module(module)
    with pytest.raises(UnsupportedRotary, match="Linear is not supported"):
        RotarySpec.from_module(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("kind", ["Phi3LongRoPEScaledRotaryEmbedding", "DualChunkRotaryEmbedding"])
def test_refusal_names_the_reason(kind):
    made = type(kind, (torch.nn.Module,), {"__module__": "vllm.model_executor.layers.rotary_embedding.some"})
    with pytest.raises(UnsupportedRotary, match=r"LongRoPE\)|dual chunk"):
        RotarySpec.from_module(made())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_refuses_a_table_that_says_something_else(vllm_rotary, dtype):
    parameters = {"rope_theta": 12345.0}
    module = vllm_rotary(64, True, parameters, dtype, 4096)
    table = module.cos_sin_cache
    try:
        module.base = 12346.0
        with pytest.raises(UnsupportedRotary, match="differs from its frequencies"):
            RotarySpec.from_module(module)
        module.base = parameters["rope_theta"]
        module.cos_sin_cache = table * 1.05
        with pytest.raises(UnsupportedRotary, match="differs from its frequencies"):
            RotarySpec.from_module(module)
        module.cos_sin_cache = table[:, :32]
        with pytest.raises(UnsupportedRotary, match="cos/sin table is"):
            RotarySpec.from_module(module)
    finally:
        module.cos_sin_cache, module.base = table, parameters["rope_theta"]
    RotarySpec.from_module(module)


def test_refuses_several_linear_factors(vllm_rotary):
    module = vllm_rotary(64, True, {"rope_type": "linear", "factor": 2.0}, torch.float32, 512)
    module.scaling_factors = [2.0, 4.0]
    with pytest.raises(UnsupportedRotary, match="2 scaling factors"):
        RotarySpec.from_module(module)


def test_fingerprint_covers_every_field():
    spec = _spec()
    same = dataclasses.replace(spec, inv_freq=spec.inv_freq.clone())
    assert spec == same
    assert hash(spec) == hash(same)
    others = [_spec(32, 16), _spec(16, 8), _spec(neox=False), _spec(base=10000.1)]
    assert len({spec, same, *others}) == 5
    assert len(spec.fingerprint()) == 64
    frequencies = torch.ones(8)
    kept = RotarySpec(16, 16, True, frequencies)
    frequencies.zero_()
    assert kept.inv_freq.tolist() == [1.0] * 8


def test_fingerprint_is_stable():
    spec = RotarySpec(4, 8, True, torch.tensor([1.0, 0.25]))
    assert spec.fingerprint() == "e9d5c4cfb73263a5cbed70aada2933ab44e5776244e107da36bca1cb594c41a3"


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="rotary_dim must be even"):
        RotarySpec(3, 16, True, torch.ones(1))
    with pytest.raises(ValueError, match="rotary_dim must be even"):
        RotarySpec(32, 16, True, torch.ones(16))
    with pytest.raises(ValueError, match="inv_freq must be"):
        RotarySpec(16, 16, True, torch.ones(7))
    with pytest.raises(ValueError, match="not finite"):
        RotarySpec(4, 16, True, torch.tensor([1.0, torch.inf]))
    spec, key = _spec(), _key(5, 2, 16)
    with pytest.raises(ValueError, match="key must be"):
        rotate(key[..., :8], spec, 1)
    with pytest.raises(ValueError, match="key must be"):
        rotate(key[0], spec, 1)
    with pytest.raises(ValueError, match="key must be"):
        unrotate(key[0], spec, torch.arange(2))
    with pytest.raises(ValueError, match="key must be"):
        rotate(key.long(), spec, 1)
    with pytest.raises(ValueError, match=r"one number or \[5\]"):
        rotate(key, spec, torch.arange(4))
    with pytest.raises(ValueError, match="whole numbers"):
        rotate(key, spec, torch.ones(5))
    with pytest.raises(ValueError, match="out must be"):
        rotate(key, spec, 1, out=torch.empty(5, 2, 8))
    with pytest.raises(ValueError, match="dtype must be"):
        rotate(key, spec, 1, dtype=torch.int32)
    with pytest.raises(ValueError, match="differs from dtype"):
        rotate(key, spec, 1, out=torch.empty(5, 2, 16), dtype=torch.bfloat16)
