"""The worker half with a forward that only notes what it was asked to do."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cachecraft_rag.reuse import CaptureSpan, Plan
from cachecraft_rag.vllm import worker_half as module
from cachecraft_rag.vllm.capture import Recorder
from cachecraft_rag.vllm.forward import slots as slots_of
from cachecraft_rag.vllm.protocol import ConnectorMetadata, PlanMessage
from cachecraft_rag.vllm.worker_half import WorkerHalf

LAYERS, HEADS, SIZE, BLOCK = 2, 1, 4, 4
MAX_ROWS, MAX_RUNS = 8, 3


class FakeForward:
    """Keeps a paged cache of its own. The K and V that it "computes" for a token are its id."""

    def __init__(self, *_):
        self.layers = [SimpleNamespace(impl=SimpleNamespace(scale=0.01)) for _ in range(LAYERS)]
        self.layer_names = tuple(f"layers.{n}.attn" for n in range(LAYERS))
        self.block_size = BLOCK
        self.recorder = Recorder()
        self.cache = torch.full((LAYERS, 64 * BLOCK), -1.0)
        self.slices = []
        self.places = []
        self.closed = False

    def to_device(self, array, dtype=torch.int64):
        return torch.from_numpy(array).to(dtype)

    def write(self, layer, key, value, slot_mapping):
        assert key.shape == (len(slot_mapping), HEADS, SIZE)
        assert torch.equal(key, value)
        self.cache[layer, slot_mapping] = key[:, 0, 0]

    def run(self, parts):
        self.slices.append([part.positions.tolist() for part in parts])
        self.places.append([part.placed.tolist() for part in parts])
        ids = torch.from_numpy(np.concatenate([part.token_ids for part in parts])).float()
        rows = ids[:, None, None].expand(-1, HEADS, SIZE)
        slots = torch.from_numpy(np.concatenate([slots_of(part.placed, part.block_ids, BLOCK) for part in parts]))
        for layer in range(LAYERS):
            self.recorder.record(layer, rows, rows)
            self.recorder.record_query(layer, rows)
            self.cache[layer, slots] = ids

    def close(self):
        self.closed = True


class Worker:
    """A worker half with what a test does to it. Plans are named, and their token ids count up."""

    shape = (LAYERS, HEADS, SIZE)

    def __init__(self, half):
        self.half = half
        self.forward = half._forward
        self.store = half._store

    def message(self, name, compute, *, end=None, staged=(), captures=(), block=0, first_id=100):
        compute = np.array(sorted(compute), dtype=np.int64)
        end = int(compute[-1]) + 1 if end is None else end
        plan = Plan(0, end, compute, tuple(staged), tuple(captures))
        blocks = np.arange(block, block + -(-end // BLOCK), dtype=np.int64)
        return PlanMessage((name, 1), plan, np.arange(first_id, first_id + end, dtype=np.int64), blocks)

    def step(self, plans=(), cancelled=(), freed=()):
        self.half.step(ConnectorMetadata(list(freed), list(cancelled), list(plans)))
        return self.half.take_finished(), self.half.take_report()

    def run_all(self, *plans):
        """Step until nothing is left to be done: the results of all plans, and the handles of what was stored."""
        ended, results, stored = [], {}, []
        finished, report = self.step(plans)
        for _ in range(50):
            ended += finished
            if report is not None:
                assert not results.keys() & report.results.keys(), "a plan ended twice"
                results |= report.results
                stored += report.stored
            finished, report = self.step()
            if not self.half._queue and not finished and report is None:
                break
        assert sorted(ended) == sorted(plan_id[0] for plan_id in results)
        return results, stored

    def stored_piece(self, handle, tokens, first_id=500):
        """Compute and store a piece whose token ids begin with `first_id`."""
        captures = [CaptureSpan(handle, 0, tokens)]
        self.run_all(self.message("prewarm", range(tokens), captures=captures, block=40, first_id=first_id))
        self.forward.slices.clear()
        self.forward.places.clear()

    def cached(self, block, positions, layer=0):
        """What the paged cache holds at positions of a request whose first block is `block`."""
        return [float(self.forward.cache[layer, block * BLOCK + position]) for position in positions]


@pytest.fixture
def make_worker(monkeypatch):
    """`make_worker(disk=None, **options of WorkerHalf)`."""
    monkeypatch.setattr(module, "SelectiveForward", FakeForward)
    monkeypatch.setattr(module, "rotary_specs", lambda model, names: [None] * LAYERS)
    monkeypatch.setattr(module, "max_runs_per_slice", lambda config, layer: MAX_RUNS)
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=MAX_ROWS))
    spec = SimpleNamespace(num_kv_heads=HEADS, head_size=SIZE, dtype=torch.float32)
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec)])
    device = torch.device("cpu")
    return lambda disk=None, **options: Worker(WorkerHalf(config, cache, None, device, disk, **options))


@pytest.fixture
def worker(make_worker):
    return make_worker()
