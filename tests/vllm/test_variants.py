import numpy as np
import pytest

from cachecraft_rag.reuse.overlap import PrefixChunk
from cachecraft_rag.store import KeyMaker, KvIndex
from cachecraft_rag.store.entry import EntrySize
from cachecraft_rag.store.seen import AttentionStatistics, SeenContext
from cachecraft_rag.vllm.protocol import RequestParams
from cachecraft_rag.vllm.variants import VariantKeeper, best_candidate

HEAD = (1, 2, 3, 4)
A, B, C = (tuple(range(first, first + 20)) for first in (100, 200, 300))
QUESTION = (7, 8, 9)
KEYS = KeyMaker({}, HEAD)


def params_of(*pieces):
    ids, segments = [], []
    for piece in pieces:
        name = f"id-{piece[0]}" if len(piece) >= 10 else None
        segments.append((len(ids), len(ids) + len(piece), name, name, "a.md" if name else None))
        ids += piece
    return RequestParams("tenant", "all", 1.0, 1, tuple(segments)), np.array(ids, dtype=np.int32), len(ids) - 1


def statistics(pieces, tokens=20, inter=1.0):
    return AttentionStatistics(np.full(pieces, inter, np.float32), 10.0, np.arange(tokens, dtype=np.float32))


@pytest.fixture
def index():
    return KvIndex(100_000)


def keeper_of(index, limit=2):
    head = np.array(HEAD, dtype=np.int32)
    return VariantKeeper(index, KEYS, head, size=EntrySize(10), limit=limit, min_chunk_tokens=8)


def keep(index, *pieces, limit=2):
    """What is reserved for a prompt, stored and no longer read."""
    spans = keeper_of(index, limit).reserve(*params_of(*pieces))
    for span in spans:
        index.commit(span.handle, statistics(len(span.pieces)))
        index.release(span.handle)
    return spans


def test_all_chunks_behind_others_are_kept_with_what_is_in_front(index):
    spans = keeper_of(index).reserve(*params_of(HEAD, A, (50, 51), B, C, QUESTION))
    assert [(span.start, span.stop, span.pieces) for span in spans] == [
        (26, 46, ((4, 24), (24, 26))),
        (46, 66, ((4, 24), (24, 26), (26, 46))),
    ]
    entry = index.by_handle(spans[1].handle)
    assert entry.seen.base == KEYS.chunk("tenant", C)
    assert entry.seen.keys == (KEYS.chunk("tenant", A), KEYS.text("tenant", (50, 51)), KEYS.chunk("tenant", B))
    assert entry.seen.tokens == (20, 2, 20)
    assert (entry.cached_at, entry.chunk_id, entry.documents, entry.users) == (46, "id-300", {"a.md"}, 1)


def test_text_behind_the_head_in_its_own_segment_is_in_front(index):
    (span,) = keeper_of(index).reserve(*params_of((*HEAD, 60, 61), A, QUESTION))
    assert span.pieces == ((4, 6),)


def test_a_chunk_whose_last_token_vllm_computes_is_not_kept(index):
    assert keeper_of(index).reserve(*params_of(HEAD, A, B)) == []
    assert len(keeper_of(index).reserve(*params_of(HEAD, A, B, C))) == 1


def test_nothing_is_kept_behind_another_head_or_without_a_limit(index):
    assert keeper_of(index).reserve(*params_of((1, 2, 3, 5), A, B, QUESTION)) == []
    assert keeper_of(index, limit=0).reserve(*params_of(HEAD, A, B, QUESTION)) == []


def test_the_same_order_is_kept_once_and_the_lowest_rank_goes_for_another(index):
    base = KEYS.chunk("tenant", C)
    assert len(keep(index, HEAD, A, C, QUESTION)) == 1
    assert keep(index, HEAD, A, C, QUESTION) == []
    keep(index, HEAD, B, C, QUESTION)
    first, second = index.variants(base)
    index.touch(first)
    keep(index, HEAD, A, B, C, QUESTION)
    assert first in index.variants(base)
    assert second not in index.variants(base)
    assert len(index.variants(base)) == 2


@pytest.mark.parametrize("kind", ["pinned", "read", "pending"])
def test_what_may_not_go_is_kept_and_the_new_one_is_not(index, kind):
    if kind == "pending":
        keeper_of(index, 1).reserve(*params_of(HEAD, A, C, QUESTION))
    else:
        keep(index, HEAD, A, C, QUESTION, limit=1)
    (entry,) = index.variants(KEYS.chunk("tenant", C))
    if kind == "pinned":
        index.pin(entry, True)
    elif kind == "read":
        index.acquire(entry)
    assert keeper_of(index, 1).reserve(*params_of(HEAD, B, C, QUESTION)) == []
    assert index.variants(KEYS.chunk("tenant", C)) == [entry]


def test_variants_leave_the_list_when_they_leave_the_store(index):
    keep(index, HEAD, A, C, QUESTION)
    base = KEYS.chunk("tenant", C)
    index.delete(lambda entry: entry.chunk_id == "id-300")
    assert index.variants(base) == []
    assert index.stats().variants == 0


@pytest.mark.parametrize("kept", [True, False], ids=["canonical too", "variants only"])
def test_a_deleted_chunk_takes_what_has_attended_to_it(index, kept):
    if kept:
        entry = index.reserve(
            KEYS.chunk("tenant", A),
            namespace="tenant",
            token_ids=np.array(A, dtype=np.int32),
            nbytes=20,
            cached_at=4,
            chunk_id="id-100",
        )
        index.commit(entry.handle)
    keep(index, HEAD, B, A, C, QUESTION)  # variants of A and C
    keep(index, HEAD, B, C, QUESTION)  # another of C, which has not seen A
    removed = index.delete(lambda entry: entry.chunk_id == "id-100")
    assert {entry.chunk_id for entry in removed} == {"id-100"}
    (left,) = index.variants(KEYS.chunk("tenant", C))
    assert left.seen.keys == (KEYS.chunk("tenant", B),)
    assert index.check() == []


def stored(seen=None):
    index = KvIndex(1000)
    ids = np.arange(20, dtype=np.int32)
    entry = index.reserve("k", namespace="t", token_ids=ids, nbytes=20, cached_at=0, seen=seen)
    index.commit(entry.handle, statistics(len(seen.keys)) if seen is not None else None)
    return entry


X, Y, Z = (PrefixChunk(name, 20) for name in "xyz")


def seen(*pieces):
    return SeenContext("base", tuple(p.key for p in pieces), tuple(p.tokens for p in pieces))


def test_canonical_kv_is_exact_behind_nothing_and_unseen_behind_anything():
    canonical = stored()
    assert best_candidate([canonical], [], alone=True).same_context
    candidate = best_candidate([canonical], [X], alone=True)
    assert (candidate.overhead, candidate.attention, candidate.same_context) == (0.5, None, False)


def test_canonical_kv_behind_stand_in_passages_is_unseen_behind_nothing_too():
    for in_front in ([], [X]):
        candidate = best_candidate([stored()], in_front, alone=False)
        assert (candidate.overhead, candidate.attention, candidate.same_context) == (0.5, None, False)


def test_the_variant_that_saw_most_of_the_prompt_is_reused():
    canonical, of_x, of_xy = stored(), stored(seen(X)), stored(seen(X, Y))
    candidate = best_candidate([canonical, of_x, of_xy], [X, Y], alone=True)
    assert (candidate.entry, candidate.overhead, candidate.same_context) == (of_xy, 0.0, True)
    turned = best_candidate([canonical, of_x, of_xy], [Y, X], alone=True)
    assert turned.entry is of_x, "order counts fully where it is reversed"
    assert 0 < turned.overhead < 0.5
    assert turned.attention.tolist() == list(range(20))
    assert best_candidate([canonical, of_x, of_xy], [X], alone=True).entry is of_x


def test_what_has_seen_nothing_of_the_prompt_is_no_better_than_canonical():
    candidate = best_candidate([stored(), stored(seen(X))], [Z], alone=True)
    assert candidate.entry.seen is None
