import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachecraft_rag.store.device import DeviceTier
from cachecraft_rag.store.eviction import FrequencyReuse, LeastRecentlyUsed
from cachecraft_rag.store.memory import ChunkKv, HostMemoryStore
from cachecraft_rag.store.transfer import DirectTransfer

SHAPE = (3, 2, 4)  # layers, heads, size
ROW = 2 * 3 * 2 * 4 * 4  # bytes of a token
CPU = torch.device("cpu")


def make(rows, eviction=None, *, spare=0, dtype=torch.float32, limit=None, **options):
    memory = torch.zeros(rows * ROW * dtype.itemsize // 4 + spare, dtype=torch.uint8)
    return DeviceTier(
        memory, SHAPE, dtype, DirectTransfer(CPU, dtype, limit), eviction or LeastRecentlyUsed(), **options
    )


def kv_of(tokens, number, dtype=torch.float32):
    """Each number is of its place and of its chunk."""
    data = torch.arange(math.prod((3, 2, tokens, 2, 4)), dtype=torch.float32).view(3, 2, tokens, 2, 4)
    return ChunkKv((data + 1000 * number).to(dtype))


def read(tier, handle, rows):
    """K and V of a copy, put together from its pieces."""
    pieces = tier.pieces(handle, rows)
    if pieces is None:
        return None
    data = torch.full((3, 2, rows.stop - rows.start, 2, 4), math.nan)
    for piece in pieces:
        data[piece.layers, 0, piece.rows] = piece.key
        data[piece.layers, 1, piece.rows] = piece.value
    return data


def test_a_used_piece_is_copied_and_read_by_rows_and_layers():
    tier = make(20, limit=ROW)
    kv = kv_of(6, 1)
    assert tier.pieces(5, slice(0, 6)) is None
    assert tier.layer(5, slice(0, 6), 1, 0) is None
    tier.use(5, kv, "one", 0.1)
    kv.data.zero_()  # it is a copy
    expected = kv_of(6, 1)
    assert torch.equal(read(tier, 5, slice(2, 5)), expected.data[:, :, 2:5])
    assert torch.equal(tier.layer(5, slice(1, 6), 2, 0), expected.key[2, 1:6])
    assert torch.equal(tier.layer(5, slice(1, 6), 2, 1), expected.value[2, 1:6])
    report = tier.report()
    assert (report.used_bytes, report.handles, report.hits) == (6 * ROW, (5,), 0)
    tier.use(5, kv, "one", 0.1)
    assert tier.report().hits == 1


def test_the_budget_is_whole_rows_of_what_was_set_aside():
    tier = make(4, spare=ROW - 1)
    assert tier.capacity_bytes == 4 * ROW
    tier.use(1, kv_of(5, 1), "one", 0.0)
    assert tier.report().handles == ()
    tier.use(2, kv_of(4, 2), "one", 0.0)
    assert tier.used_bytes == tier.capacity_bytes
    assert torch.equal(read(tier, 2, slice(0, 4)), kv_of(4, 2).data)


def test_compressed_pieces_are_copied_as_the_model_wants_them():
    store = HostMemoryStore(*SHAPE, torch.bfloat16, compress="int8")
    store.put(1, kv_of(6, 1, torch.bfloat16))
    tier = make(10, dtype=torch.bfloat16)
    tier.use(1, store.get(1), "one", 0.0)
    key, value = store.get(1).rows(slice(1, 5), torch.bfloat16)
    (piece,) = tier.pieces(1, slice(1, 5))
    assert torch.equal(piece.key, key)
    assert torch.equal(piece.value, value)


def test_what_was_used_last_takes_the_place_of_what_was_used_longest_ago():
    tier = make(10)
    for handle, tokens in ((1, 4), (2, 4), (3, 5)):
        tier.use(handle, kv_of(tokens, handle), "one", 0.0)
    assert tier.report().handles == (2, 3)
    assert torch.equal(read(tier, 2, slice(0, 4)), kv_of(4, 2).data)
    assert torch.equal(read(tier, 3, slice(0, 5)), kv_of(5, 3).data)


def test_by_score_a_newcomer_that_saves_little_does_not_displace_what_saves_more():
    tier = make(10, FrequencyReuse())
    for _ in range(4):
        for handle in (1, 2):
            tier.use(handle, kv_of(5, handle), "one", 0.1)
    tier.use(3, kv_of(5, 3), "one", 0.9)
    assert tier.report().handles == (1, 2)
    tier.use(3, kv_of(5, 3), "one", 0.1)
    assert tier.report().handles == (2, 3)


def test_freed_copies_are_gone_and_their_memory_is_used_again():
    tier = make(10)
    tier.use(1, kv_of(10, 1), "one", 0.0)
    tier.free(1)
    tier.free(1)
    tier.free(77)
    assert tier.pieces(1, slice(0, 1)) is None
    assert tier.layer(1, slice(0, 1), 0, 0) is None
    assert (tier.used_bytes, tier.report().handles) == (0, ())
    tier.use(2, kv_of(10, 2), "one", 0.0)
    assert torch.equal(read(tier, 2, slice(0, 10)), kv_of(10, 2).data)


def test_a_namespace_displaces_its_own_copies_where_it_has_its_share():
    tier = make(20, namespace_share=0.5)
    tier.use(1, kv_of(6, 1), "one", 0.0)
    for handle in (2, 3, 4):
        tier.use(handle, kv_of(5, handle), "two", 0.0)
    assert tier.report().handles == (1, 3, 4)
    tier.use(5, kv_of(11, 5), "two", 0.0)
    assert tier.report().handles == (1, 3, 4)


operations = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.integers(1, 8), st.floats(0.0, 1.0)),
        st.tuples(st.just("free"), st.integers(1, 8), st.just(0.0)),
    ),
    max_size=60,
)


@pytest.mark.parametrize("policy", [LeastRecentlyUsed, FrequencyReuse])
@given(operations, st.integers(0, 40), st.sampled_from([1.0, 0.6]))
def test_the_budget_is_never_exceeded_and_every_copy_is_whole(policy, todo, rows, share):
    tier = make(rows, policy(), limit=ROW, namespace_share=share)
    held = set()
    for what, handle, computed in todo:
        tokens = 3 * handle
        if what == "use":
            tier.use(handle, kv_of(tokens, handle), "one" if handle % 2 else "two", computed)
            held.add(handle)
        else:
            tier.free(handle)
            held.discard(handle)
        copied = tier.report().handles
        assert set(copied) <= held
        assert tier.used_bytes == tier.report().used_bytes == sum(3 * h * ROW for h in copied) <= tier.capacity_bytes
        for odd in (0, 1):
            assert sum(3 * h * ROW for h in copied if h % 2 == odd) <= share * tier.capacity_bytes
        for one in copied:
            assert torch.equal(read(tier, one, slice(0, 3 * one)), kv_of(3 * one, one).data)
