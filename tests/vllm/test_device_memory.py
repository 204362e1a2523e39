from types import SimpleNamespace

import pytest
import torch

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.store.ring import RingTransfer, Slot
from cachecraft_rag.store.transfer import PIECE_BYTES, DirectTransfer
from cachecraft_rag.vllm import device_memory
from cachecraft_rag.vllm.device_memory import DeviceMemory, make_tier, make_transfer, reserve
from cachecraft_rag.vllm.settings import ConnectorSettings

GIB = 1 << 30


def settings_of(gib, **options):
    return ConnectorSettings(
        store_bytes=1,
        min_chunk_tokens=1,
        store_misses=True,
        head_token_ids=(1,),
        tokenizer_fingerprint="t",
        weights_fingerprint="w",
        secret="s",
        device_store_bytes=int(gib * GIB),
        **options,
    )


@pytest.fixture
def worker(monkeypatch):
    """A worker on a device of 16 GiB, 12 of them vLLM's; its weights took 4, and 12 are free now."""
    free = 12 * GIB
    monkeypatch.setattr(torch.accelerator, "get_memory_info", lambda device: (free, 16 * GIB))

    def make(gib, paged_gib=None, device="meta"):
        transfer = SimpleNamespace(kv_connector_extra_config={"cachecraft": settings_of(gib).to_wire()})
        cache = SimpleNamespace(kv_cache_memory_bytes=None if paged_gib is None else paged_gib * GIB)
        return SimpleNamespace(
            vllm_config=SimpleNamespace(kv_transfer_config=transfer, cache_config=cache),
            device=torch.device(device),
            requested_memory=12 * GIB,
            init_snapshot=SimpleNamespace(free_memory=16 * GIB),
        )

    return make


def test_nothing_is_reserved_unless_it_was_asked_for(worker):
    memory = reserve(worker(0))
    assert (memory.copies, memory.slots) == (None, ())


@pytest.mark.parametrize(("gib", "paged"), [(7, None), (7.9, None), (7, 4), (3.9, 8)])
def test_all_of_it_is_reserved_at_once(worker, gib, paged):
    memory = reserve(worker(gib, paged)).copies
    assert (memory.dtype, memory.shape) == (torch.uint8, (int(gib * GIB),))
    assert memory.device.type == "meta"


@pytest.mark.parametrize(
    ("gib", "paged", "named"),
    [
        (8, None, r"device_store_gb=8.00 .*the weights leave 8.00 GiB; lower it, or raise .*gpu_memory_utilization"),
        (4, 8, r"device_store_gb=4.00 .*kv_cache_gb leave 4.00 GiB; lower it, or kv_cache_gb"),
        (1, 20, r"leave 0.00 GiB"),
    ],
)
def test_what_leaves_nothing_for_vllm_is_refused_with_what_is_there(worker, gib, paged, named):
    with pytest.raises(InvalidInput, match=named):
        reserve(worker(gib, paged))


def test_on_a_cpu_pages_are_taken_as_they_are_written(worker, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "get_memory_info", None)
    assert reserve(worker(1, device="cpu")).copies.numel() == GIB


def test_the_tier_has_the_models_shape_and_the_engines_policy():
    spec = SimpleNamespace(num_kv_heads=2, head_size=4, dtype=torch.bfloat16)
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=["a", "b", "c"], kv_cache_spec=spec)])
    transfer = DirectTransfer(torch.device("cpu"), torch.bfloat16)
    settings = settings_of(0, eviction="lru", namespace_share=0.5)
    tier = make_tier(settings, cache, DeviceMemory(torch.zeros(1000, dtype=torch.uint8), ()), transfer)
    assert tier.capacity_bytes == 1000 // 96 * 96
    assert tier._eviction.name == "lru"
    assert tier._quota == tier.capacity_bytes // 2
    assert make_tier(settings, cache, DeviceMemory(None, ()), transfer) is None


@pytest.mark.parametrize(("device", "limit"), [("cpu", None), ("meta", PIECE_BYTES)])
def test_without_slots_copies_are_plain_and_on_a_cpu_there_are_none(device, limit):
    transfer = make_transfer(DeviceMemory(None, ()), torch.device(device), torch.bfloat16)
    assert isinstance(transfer, DirectTransfer)
    assert transfer._piece_bytes == limit


def test_with_slots_they_go_through_the_ring(monkeypatch):
    monkeypatch.setattr(device_memory, "CudaLane", lambda device: f"lane to {device}")
    slot = Slot(torch.zeros(100, dtype=torch.uint8), torch.zeros(100, dtype=torch.uint8))
    transfer = make_transfer(DeviceMemory(None, (slot, slot)), torch.device("meta"), torch.bfloat16)
    assert isinstance(transfer, RingTransfer)
    assert transfer._lane == "lane to meta"


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_workers_reserve_behind_the_weights_and_hand_it_on(monkeypatch, kind):
    module = pytest.importorskip(f"cachecraft_rag.vllm.worker_{kind}")
    made = {"cpu": "CachecraftCPUWorker", "gpu": "CachecraftGPUWorker"}
    ours = getattr(module, made[kind])
    base = ours.__mro__[1]
    order = []
    monkeypatch.setattr(base, "load_model", lambda self, **options: order.append(("weights", options)))
    monkeypatch.setattr(base, "initialize_from_config", lambda self, config: order.append(("paged cache", config)))
    monkeypatch.setattr(module, "reserve", lambda worker: order.append("reserved") or "memory")
    monkeypatch.setattr(module, "bind_loaded_model", lambda worker, memory: order.append(("bound", memory)))
    worker = object.__new__(ours)
    worker.load_model(load_dummy_weights=False)
    worker.initialize_from_config("config")
    assert order == [
        ("weights", {"load_dummy_weights": False}),
        "reserved",
        ("paged cache", "config"),
        ("bound", "memory"),
    ]
