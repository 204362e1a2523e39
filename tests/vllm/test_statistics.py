"""Attention statistics of variants, slice by slice, against the plain softmax over the whole prompt."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cachecraft_rag.kernels.attention_stats_reference import attention_mass_reference
from cachecraft_rag.reuse import CaptureSpan
from cachecraft_rag.vllm import statistics as module
from cachecraft_rag.vllm.capture import Watch
from cachecraft_rag.vllm.statistics import StatisticsMeter, measured_layers

LAYERS, HEADS, KV_HEADS, SIZE, SCALE = 6, 4, 2, 8, 0.3
END = 40
# Head 0 to 4; pieces 4 to 12, 12 to 15 (text), 15 to 27, 27 to 38; text behind them.
CAPTURES = (
    CaptureSpan(8, 15, 27, ((4, 12), (12, 15))),
    CaptureSpan(9, 27, 38, ((4, 12), (12, 15), (15, 27))),
)


@pytest.fixture
def forward(monkeypatch):
    monkeypatch.setattr(module, "tensor_parallel_mean", lambda values: values)
    layers = [SimpleNamespace(impl=SimpleNamespace(scale=SCALE)) for _ in range(LAYERS)]
    return SimpleNamespace(layers=layers, to_device=lambda array: torch.from_numpy(np.asarray(array)))


@pytest.fixture
def tensors():
    random = torch.Generator().manual_seed(5)
    query = torch.randn(LAYERS, END, HEADS, SIZE, generator=random, dtype=torch.float64)
    return query, torch.randn(LAYERS, END, KV_HEADS, SIZE, generator=random, dtype=torch.float64)


def measure(forward, tensors, cuts, others=0):
    """`others`: rows of other requests in front of ours in each slice."""
    query, key = tensors
    meter = StatisticsMeter(forward, CAPTURES, END)
    for start, stop in pairwise(cuts):
        watch = Watch()
        for layer in measured_layers(LAYERS):
            padding = torch.full((others, 1, SIZE), 7.0, dtype=torch.float64)
            watch.queries[layer] = torch.cat([padding.expand(-1, HEADS, -1), query[layer, start:stop]])
            watch.keys[layer] = torch.cat([padding.expand(-1, KV_HEADS, -1), key[layer, start:stop]])
        meter.see(watch, slice(others, others + stop - start), np.arange(start, stop))
    return meter.results()


@pytest.mark.parametrize("cuts", [(0, END), (0, 7, 20, 21, 33, END), (0, 15, 27, END)])
@pytest.mark.parametrize("others", [0, 3])
def test_any_slices_give_the_whole_softmaxs_numbers(forward, tensors, cuts, others):
    query, key = tensors
    positions = torch.arange(END)
    tables = [
        attention_mass_reference(query[n], key[n], SCALE, positions, positions, [0, 4, 12, 15, 27, 38, END])[1]
        for n in measured_layers(LAYERS)
    ]
    table = torch.stack(tables).mean(dim=0).numpy()
    found = measure(forward, tensors, cuts, others)
    assert set(found) == {8, 9}
    np.testing.assert_allclose(found[8].inter, table[15:27, 1:3].sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found[8].intra, table[15:27, 3].sum(), rtol=1e-5)
    np.testing.assert_allclose(found[8].on_context, table[15:27, 1:3].sum(axis=1), rtol=1e-5)
    np.testing.assert_allclose(found[9].inter, table[27:38, 1:4].sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(found[9].intra, table[27:38, 4].sum(), rtol=1e-5)
    np.testing.assert_allclose(found[9].on_context, table[27:38, 1:4].sum(axis=1), rtol=1e-5)


def test_a_token_divides_its_attention_between_head_context_and_chunk(forward, tensors):
    for statistics in measure(forward, tensors, (0, 18, END)).values():
        assert statistics.inter.sum() == pytest.approx(statistics.on_context.sum(), rel=1e-5)
        assert statistics.inter.sum() + statistics.intra < statistics.on_context.size


@pytest.mark.parametrize(("layers", "expected"), [(1, {0}), (2, {1}), (24, {1, 5, 9, 13, 17, 21})])
def test_every_fourth_layer_is_looked_at(layers, expected):
    assert measured_layers(layers) == expected
