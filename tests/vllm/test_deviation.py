"""How far stored V is from the one that the model computes now, measured on a model that is three numbers."""

import numpy as np
import torch

from cachecraft_rag.reuse import Plan, StagedSpan
from cachecraft_rag.reuse.plan import PendingChoice
from cachecraft_rag.vllm import deviation as module
from cachecraft_rag.vllm.capture import Recorder
from cachecraft_rag.vllm.protocol import PlanMessage


class Forward:
    """V of a token at layer 1 is its id, in all four places of two heads."""

    def __init__(self):
        self.recorder = Recorder()
        self.layers = [None] * 3
        self.slices = []

    def run(self, parts):
        (part,) = parts
        self.slices.append(part.positions.tolist())
        value = torch.from_numpy(part.token_ids).float()[:, None, None].expand(-1, 2, 2)
        for layer in range(3):
            self.recorder.record(layer, -value, value * layer)
            self.slices[-1].append(f"layer {layer}")


def deviation_of(monkeypatch, rows, spans, stored, max_rows=100):
    monkeypatch.setattr(module, "tensor_parallel_mean", lambda values: values)
    forward = Forward()
    pending = PendingChoice("deviation", 0.5, 1, np.empty(0, np.int64), np.asarray(rows), tuple(spans), ())
    plan = Plan(0, 12, np.array([11]), (), (), pending)
    message = PlanMessage(("a", 1), plan, np.arange(12), np.array([0]))
    found = module.value_deviation(forward, message, stored, max_rows)
    return found.tolist(), forward.slices


def test_the_distance_is_that_of_layer_one_and_nothing_later_runs(monkeypatch):
    def stored(span, layer):
        assert layer == 1
        values = torch.arange(span.start, span.stop).float()
        values[2] += 3  # position 4
        return values[:, None, None].expand(-1, 2, 2)

    found, slices = deviation_of(monkeypatch, [2, 3, 4, 5, 8], [StagedSpan(1, 0, 2, 6, 0)], stored)
    assert found == [0, 0, 0, 0, 4 * 9, 0, 0, 0, 0, 0, 0, 0]
    assert slices == [[2, 3, 4, 5, 8, "layer 0"]]


def test_rows_that_do_not_fit_into_one_forward_take_several(monkeypatch):
    spans = [StagedSpan(1, 0, 0, 5, 0), StagedSpan(2, 0, 5, 9, 0)]
    ones = torch.ones(5, 2, 2)
    found, slices = deviation_of(monkeypatch, range(1, 9), spans, lambda span, _: ones[: span.stop - span.start], 3)
    assert found == [0.0, *(4.0 * (n - 1) ** 2 for n in range(1, 9)), 0, 0, 0]
    assert [piece[:-1] for piece in slices] == [[1, 2, 3], [4, 5, 6], [7, 8]]


def test_what_is_gone_has_none(monkeypatch):
    found, _ = deviation_of(monkeypatch, [1, 2], [StagedSpan(1, 0, 0, 5, 0)], lambda span, layer: None)
    assert found == [0.0] * 12


def test_layers_that_are_begun_count_whole():
    assert module.layers_run_for_deviation(24) == 2
    assert module.layers_run_for_deviation(1) == 1
