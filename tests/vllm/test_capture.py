import pytest
import torch

from cachecraft_rag.store.memory import HostMemoryStore
from cachecraft_rag.vllm.capture import CaptureRows, CapturingImpl, Recorder, Watch


class Impl:
    scale = 0.5

    def __init__(self):
        self.written = []

    def do_kv_cache_update(self, *arguments):
        self.written.append(arguments)

    def forward(self, layer, query, *rest):
        return layer, query + 1, rest


def captured(recorder, rows, layer=1, count=6):
    store = HostMemoryStore(layers=2, kv_heads=1, head_size=2, dtype=torch.float32)
    target = store.allocate(4)
    target.key.zero_()
    target.value.zero_()
    impl = Impl()
    wrapped = CapturingImpl(impl, layer, recorder)
    recorder.rows = tuple(CaptureRows(target, *numbers) for numbers in rows)
    key = torch.arange(count, dtype=torch.float32)[:, None, None].expand(count, 1, 2)
    wrapped.do_kv_cache_update("layer", key, key + 100, "cache", "slots")
    return impl, target, key


def test_asked_rows_go_to_their_place_and_all_goes_on_to_vllm():
    impl, target, key = captured(Recorder(), [(1, 3, 0), (4, 6, 2)])
    assert target.key[1, :, 0, 0].tolist() == [1, 2, 4, 5]
    assert target.value[1, :, 0, 1].tolist() == [101, 102, 104, 105]
    assert not target.key[0].any()
    (arguments,) = impl.written
    assert arguments[0] == "layer"
    assert arguments[1] is key
    assert arguments[3:] == ("cache", "slots")


def test_nothing_is_captured_unless_asked():
    impl, target, _ = captured(Recorder(), [])
    assert not target.key.any()
    assert len(impl.written) == 1


def test_captured_rows_are_copies():
    store = HostMemoryStore(1, 1, 2, torch.float32)
    target = store.allocate(2)
    recorder = Recorder()
    recorder.rows = (CaptureRows(target, 0, 2, 0),)
    key = torch.ones(2, 1, 2)
    CapturingImpl(Impl(), 0, recorder).do_kv_cache_update(None, key, key, None, None)
    key.zero_()
    assert target.key.sum() == 4


def test_every_other_attribute_is_the_impls_own():
    impl = Impl()
    wrapped = CapturingImpl(impl, 0, Recorder())
    assert wrapped.scale == 0.5
    wrapped.scale = 0.25
    assert impl.scale == 0.25
    assert "scale" not in vars(wrapped)


def test_queries_are_copied_only_while_they_are_asked_for():
    recorder = Recorder()
    wrapped = CapturingImpl(Impl(), 0, recorder)
    query = torch.ones(3, 1, 2)
    with recorder.watching(Watch(queries_of=frozenset((0,)))) as watch:
        layer, output, rest = wrapped.forward("layer", query, "key")
    wrapped.forward("layer", query)
    query.zero_()
    assert (layer, output.sum(), rest) == ("layer", 12, ("key",))
    assert {index: kept.sum() for index, kept in watch.queries.items()} == {0: 6}


def test_only_the_layers_asked_for_are_copied():
    recorder = Recorder()
    watch = Watch(frozenset((1,)), keys_of=frozenset((0,)), values_of=frozenset((0, 1)))
    with recorder.watching(watch):
        for index in range(3):
            wrapped = CapturingImpl(Impl(), index, recorder)
            wrapped.do_kv_cache_update(None, torch.full((2,), 10.0 + index), torch.full((2,), 20.0 + index), None, None)
            wrapped.forward(None, torch.full((2,), 30.0 + index))
    looked_at = (watch.queries, watch.keys, watch.values)
    seen = [{layer: float(kept[0]) for layer, kept in what.items()} for what in looked_at]
    assert seen == [{1: 31.0}, {0: 10.0}, {0: 20.0, 1: 21.0}]


@pytest.mark.parametrize("what", ["queries_of", "keys_of", "values_of"])
def test_a_forward_ends_where_enough_was_seen(what):
    recorder = Recorder()
    layers = [CapturingImpl(Impl(), index, recorder) for index in range(3)]
    ran = []
    with recorder.watching(Watch(**{what: frozenset((0, 1))}, ends=True)):
        for layer in layers:
            ran.append(layer)
            layer.do_kv_cache_update(None, torch.ones(1), torch.ones(1), None, None)
            layer.forward(None, torch.ones(1))
    assert len(ran) == 2
    layers[1].forward(None, torch.ones(1))
