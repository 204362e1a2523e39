"""A scheduler half with a fake engine around it: a worker that does what it is told."""

import itertools
from types import SimpleNamespace

import pytest
import torch

from cachecraft_rag.report import RequestReport
from cachecraft_rag.store.disk_io import DiskIo
from cachecraft_rag.store.memory import HostMemoryStore
from cachecraft_rag.vllm.disk_tier import open_disk
from cachecraft_rag.vllm.identity import key_maker
from cachecraft_rag.vllm.protocol import PlanResult, RequestParams, WorkerMetadata
from cachecraft_rag.vllm.salts import cache_salt
from cachecraft_rag.vllm.scheduler_half import SchedulerHalf
from cachecraft_rag.vllm.settings import ConnectorSettings

SECRET = "secret"
HEAD = (1, 2, 3, 4)
CHUNK_TOKENS = 20
BYTES = 2 * 2 * 1 * 4 * 4  # of a token: K and V, layers, heads, size, float32


def make(store_tokens=1000, store_dir=None, disk_bytes=1 << 20, ranks=1, max_model_len=1000, **options):
    given = {
        "store_bytes": store_tokens * BYTES,
        "min_chunk_tokens": 8,
        "store_misses": True,
        "head_token_ids": HEAD,
        "tokenizer_fingerprint": "t",
        "weights_fingerprint": "w",
        "secret": SECRET,
        "store_dir": None if store_dir is None else str(store_dir),
        "disk_store_bytes": disk_bytes,
    }
    settings = ConnectorSettings(**{**given, **options})
    text = SimpleNamespace(rope_parameters={"rope_theta": 1e4})
    fields = {"revision": None, "dtype": "float32", "quantization": None, "max_model_len": max_model_len}
    model = SimpleNamespace(hf_text_config=text, **fields)
    spec = SimpleNamespace(dtype=SimpleNamespace(itemsize=4), num_kv_heads=1, head_size=4)
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=["0", "1"], kv_cache_spec=spec)])
    config = SimpleNamespace(model_config=model, parallel_config=SimpleNamespace(tensor_parallel_size=ranks))
    keys = key_maker(settings, config, cache)
    return Engine(
        SchedulerHalf(settings, config, cache), *(open_disk(settings, keys, rank, ranks) for rank in range(ranks))
    )


class Engine:
    """vLLM's scheduler and our worker half, as far as the scheduler half can see them.

    Prompts are pieces of token ids: one of 20 ids is a chunk, called `id-` and its first id, of document a.md.
    """

    bytes_per_token = BYTES

    def __init__(self, half, disk=None, *others):
        """`others`: of further ranks, which a test must serve itself."""
        self.half = half
        self.disk = disk
        self.disks = [disk, *others]
        self.memory = HostMemoryStore(layers=2, kv_heads=1, head_size=4, dtype=torch.float32)
        self.io = DiskIo(disk, self.memory) if disk is not None else None
        self.numbers = itertools.count()
        self.queue = {}
        self.tensors = {}

    def params(self, *pieces, namespace="tenant", policy="first", ratio=0.2, prewarm=False):
        ids, segments = [], []
        for piece in pieces:
            chunk = len(piece) == CHUNK_TOKENS
            chunk_id = f"id-{piece[0]}" if chunk else None
            segments.append((len(ids), len(ids) + len(piece), chunk_id, chunk_id, "a.md" if chunk else None))
            ids += piece
        return RequestParams(namespace, policy, ratio, 1, tuple(segments), prewarm), ids

    def arrive(self, *pieces, salt=None, wire=None, **options):
        params, ids = self.params(*pieces, **options)
        request = SimpleNamespace(
            request_id=f"r{next(self.numbers)}",
            kv_transfer_params={"cachecraft": params.to_wire() if wire is None else wire},
            prompt_token_ids=ids,
            num_prompt_tokens=len(ids),
            num_tokens=len(ids),
            cache_salt=cache_salt(SECRET, params) if salt is None else salt,
            skip_reading_prefix_cache=False,
            lora_request=None,
        )
        self.half.on_new_request(request)
        return request

    def ask(self, control, namespace="tenant"):
        params = RequestParams(namespace, "none", 0.0, 1, (), control=control)
        request = self.arrive((1,), wire=params.to_wire(), salt=cache_salt(SECRET, params))
        assert self.schedule(request) == (0, False)
        self.step()
        return self.finish(request)["cachecraft"]["answer"]

    def schedule(self, request, prefix=0):
        promised, is_async = self.half.get_num_new_matched_tokens(request, prefix)
        if promised is not None:
            self.half.update_state_after_alloc(request, range(100), promised)
        return promised, is_async

    def step(self, missing=(), finish=True):
        """One step of the worker: it takes what was decided and, with `finish`, carries out all plans."""
        metadata = self.half.take_metadata()
        for handle in metadata.freed:
            self.tensors.pop(handle, None)
            self.memory.free(handle)
        report = WorkerMetadata()
        if self.io is not None:
            self.carry_out(metadata.disk, report.disk)
        for plan_id in metadata.cancelled:
            if self.queue.pop(plan_id, None) is not None:
                report.results[plan_id] = PlanResult(0.0, 0.0, 0, 0, cancelled=True)
        self.queue.update({message.plan_id: message for message in metadata.plans})
        for plan_id, message in list(self.queue.items()) if finish else []:
            del self.queue[plan_id]
            for span in message.plan.staged:
                self.look_at(span, message)
            lost = {span.handle for span in message.plan.staged if span.handle not in self.tensors} | set(missing)
            for span in message.plan.captures:
                self.tensors[span.handle] = (span.stop - span.start) * BYTES
                kv = self.memory.allocate(span.stop - span.start)
                kv.data.copy_(torch.from_numpy(message.token_ids[span.start : span.stop])[:, None, None])
                self.memory.put(span.handle, kv)
                report.stored.append(span.handle)
            gone = {handle: (self.io and self.io.reason(handle)) or "its stored KV was gone" for handle in lost}
            report.results[plan_id] = PlanResult(0.1, 0.2, 1, message.plan.compute.size, gone)
        report.store_bytes = sum(self.tensors.values())
        self.half.on_worker_report(report)
        return metadata

    def carry_out(self, orders, report):
        """All that was ordered of the disk, to its end."""
        self.io.begin(orders)
        done = 0
        while done < len(orders.reads) + len(orders.changes):
            self.io.collect(report, 1.0)
            done = report.changed + len(report.loaded) + len(report.unreadable)
        for read in orders.reads:
            if read.handle in report.loaded:
                self.tensors[read.handle] = read.tokens * BYTES

    def look_at(self, span, message):
        """What is staged must be what was stored of these very tokens."""
        kv = self.memory.get(span.handle)
        if kv is not None:
            rows = slice(span.source_start, span.source_start + span.stop - span.start)
            assert kv.key[1, rows, 0, 3].tolist() == message.token_ids[span.start : span.stop].tolist()

    def finish(self, request):
        return self.half.request_finished(request)

    def report(self, request):
        return RequestReport.from_dict(self.finish(request)["cachecraft"]["report"])

    def serve(self, *pieces, prefix=0, missing=(), **options):
        request = self.arrive(*pieces, **options)
        self.schedule(request, prefix)
        self.step(missing)
        report = self.report(request)
        self.step()
        return report

    def prewarm(self, *chunks, namespace="tenant"):
        for chunk in chunks:
            self.serve(HEAD, chunk, chunk[-1:], prewarm=True, policy="none", ratio=0.0, namespace=namespace)

    def check(self):
        return self.ask({"op": "check"})["faults"]


@pytest.fixture
def make_fake_engine():
    """`make_fake_engine(store_tokens=1000)`; canonical head (1, 2, 3, 4)."""
    return make


@pytest.fixture
def engine():
    return make()
