import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecraft_rag.kernels import attention_mass, segment_attention
from cachecraft_rag.kernels.attention_stats_reference import attention_mass_reference


def _inputs(rows, keys, heads=6, kv_heads=2, head_size=16, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(rows, heads, head_size, generator=generator, dtype=torch.float64).to(dtype)
    key = torch.randn(keys, kv_heads, head_size, generator=generator, dtype=torch.float64).to(dtype)
    return query, key, head_size**-0.5


def _compare(query, key, scale, query_positions, key_positions, offsets, tolerance, **options):
    mass = attention_mass(query, key, scale, query_positions, key_positions, offsets, **options)
    per_key, per_row = attention_mass_reference(query, key, scale, query_positions, key_positions, offsets)
    torch.testing.assert_close(mass.per_key.double(), per_key, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mass.per_row_segment.double(), per_row, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(mass.per_segment.double(), per_row.sum(dim=0), rtol=tolerance, atol=tolerance)
    return mass


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 1e-5)]
)
@pytest.mark.parametrize("max_scores", [1, 7, 100, 1999, 1 << 20])
def test_equals_full_softmax_in_pieces_of_any_size(dtype, tolerance, max_scores):
    query, key, scale = _inputs(11, 37, dtype=dtype)
    mass = _compare(
        query, key, scale, torch.arange(26, 37), torch.arange(37), [0, 5, 5, 20, 37], tolerance, max_scores=max_scores
    )
    assert mass.per_key.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (8, 1), (9, 3)])
def test_query_heads_share_key_heads(heads, kv_heads):
    query, key, scale = _inputs(9, 20, heads, kv_heads)
    _compare(query, key, scale, torch.arange(11, 20), torch.arange(20), [0, 8, 20], 1e-12)


@pytest.mark.parametrize("max_scores", [30, 1 << 20])
def test_positions_decide_what_a_row_sees(max_scores):
    query, key, scale = _inputs(4, 8)
    key_positions = torch.tensor([7, 3, 0, 5, 12, 1, 6, 2])
    query_positions = torch.tensor([6, 0, 12, 4])
    mass = _compare(query, key, scale, query_positions, key_positions, [0, 3, 6, 8], 1e-12, max_scores=max_scores)
    assert mass.per_row_segment[1].tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("max_scores", [24, 1 << 20])
def test_row_that_sees_no_key_is_zero(max_scores):
    query, key, scale = _inputs(3, 10, dtype=torch.float32)
    mass = attention_mass(
        query, key, scale, torch.tensor([4, 9, 15]), torch.arange(5, 15), [0, 10], max_scores=max_scores
    )
    assert mass.per_row_segment.squeeze(1).tolist() == pytest.approx([0.0, 1.0, 1.0], abs=1e-6)
    nothing = attention_mass(query, key, scale, torch.zeros(3, dtype=torch.int64), torch.arange(5, 15), [0, 10])
    assert not nothing.per_key.any()
    assert not nothing.per_row_segment.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("max_scores", [50, 1 << 20])
def test_huge_logits_stay_finite(dtype, max_scores):
    query, key, _ = _inputs(6, 30, dtype=dtype)
    logits = torch.einsum("rhd,khd->rhk", query[:, :2].float(), key.float())
    scale = 1e4 / float(logits.abs().max())
    mass = _compare(query, key, scale, torch.arange(24, 30), torch.arange(30), [0, 10, 30], 2e-2, max_scores=max_scores)
    assert torch.isfinite(mass.per_key).all()
    torch.testing.assert_close(mass.per_row_segment.sum(dim=1), torch.ones(6), rtol=0, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 20),
    keys=st.integers(1, 40),
    group=st.integers(1, 3),
    magnitude=st.sampled_from([0.0, 1.0, 100.0, 1e4]),
    max_scores=st.integers(1, 3000),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_mass_of_a_row_is_one_where_it_sees_a_key(rows, keys, group, magnitude, max_scores, seed, data):
    query, key, scale = _inputs(rows, keys, 2 * group, 2, dtype=torch.float32, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    query_positions = torch.randint(0, 50, (rows,), generator=generator)
    key_positions = torch.randperm(50, generator=generator)[:keys]
    cuts = sorted(data.draw(st.lists(st.integers(0, keys), max_size=4)))
    offsets = torch.tensor([0, *cuts, keys])
    mass = attention_mass(query, key, scale * magnitude, query_positions, key_positions, offsets, max_scores=max_scores)
    sees = (key_positions[None, :] <= query_positions[:, None]).any(dim=1).float()
    torch.testing.assert_close(mass.per_row_segment.sum(dim=1), sees, rtol=0, atol=1e-5)
    torch.testing.assert_close(mass.per_key.sum(), sees.sum(), rtol=1e-5, atol=1e-5)
    assert (mass.per_key >= 0).all()


def test_segment_attention_groups_rows():
    query, key, scale = _inputs(20, 20)
    positions = torch.arange(20)
    offsets = [0, 4, 9, 15, 20]
    mass = attention_mass(query, key, scale, positions, positions, offsets)
    row_segments = torch.tensor([0] * 4 + [1] * 5 + [2] * 6 + [-1] * 5)
    grouped = segment_attention(mass, row_segments)

    expected = torch.zeros(4, 4, dtype=torch.float64)
    for row, segment in enumerate(row_segments.tolist()):
        if segment >= 0:
            expected[segment] += mass.per_row_segment[row]
    torch.testing.assert_close(grouped.between, expected)
    assert not grouped.between.triu(1).any()
    assert grouped.between.sum().item() == pytest.approx(15)
    assert not grouped.on_context[:9].any()
    torch.testing.assert_close(grouped.on_context[9:15], mass.per_row_segment[9:15, 1])
    torch.testing.assert_close(grouped.on_context[15:], mass.per_row_segment[15:, 1:].sum(dim=1))


def test_no_rows_and_no_keys():
    query, key, scale = _inputs(0, 5)
    mass = attention_mass(query, key, scale, torch.arange(0), torch.arange(5), [0, 5])
    assert mass.per_row_segment.shape == (0, 1)
    assert segment_attention(mass, torch.arange(0)).between.tolist() == [[0.0]]
    query, key, scale = _inputs(3, 0)
    mass = attention_mass(query, key, scale, torch.arange(3), torch.arange(0), [0, 0])
    assert not mass.per_row_segment.any()


def test_bad_arguments_are_named():
    query, key, scale = _inputs(3, 5)
    rows, keys = torch.arange(3), torch.arange(5)
    with pytest.raises(ValueError, match="rise from 0 to 5"):
        attention_mass(query, key, scale, rows, keys, [0, 4])
    with pytest.raises(ValueError, match="rise from 0 to 5"):
        attention_mass(query, key, scale, rows, keys, [0, 4, 3, 5])
    with pytest.raises(ValueError, match="multiple of key heads"):
        attention_mass(query[:, :5], key, scale, rows, keys, [0, 5])
    with pytest.raises(ValueError, match=r"positions must be \[3\]"):
        attention_mass(query, key, scale, keys, keys, [0, 5])
    with pytest.raises(ValueError, match="must be floating"):
        attention_mass(query.long(), key, scale, rows, keys, [0, 5])
    with pytest.raises(ValueError, match="head_size"):
        attention_mass(query, key[..., :8], scale, rows, keys, [0, 5])
    with pytest.raises(ValueError, match="max_scores"):
        attention_mass(query, key, scale, rows, keys, [0, 5], max_scores=0)
    mass = attention_mass(query, key, scale, rows, keys, [0, 5])
    with pytest.raises(ValueError, match=r"in -1\.\.0"):
        segment_attention(mass, torch.tensor([0, 1, 0]))
    with pytest.raises(ValueError, match=r"must be \[3\]"):
        segment_attention(mass, torch.tensor([0, 0]))
