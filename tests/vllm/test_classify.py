import numpy as np
import pytest

from cachecraft_rag.report import Outcome
from cachecraft_rag.store import KeyMaker, KvIndex
from cachecraft_rag.store.entry import EntrySize
from cachecraft_rag.vllm.classify import Classifier
from cachecraft_rag.vllm.protocol import RequestParams

HEAD = (1, 2, 3, 4)
A = tuple(range(100, 120))
B = tuple(range(200, 230))
QUESTION = (7, 8, 9)
BYTES = 10


class Prompt:
    """Token ids with their segments; pieces are ids alone (text) or (ids, chunk id) or (ids, chunk id, document)."""

    def __init__(self, *pieces, namespace="tenant"):
        ids, segments = [], []
        for piece in pieces:
            text = isinstance(piece[0], int)
            piece_ids = piece if text else piece[0]
            chunk_id = None if text else piece[1]
            document = piece[2] if not text and len(piece) > 2 else None
            digest = None if text else f"sha-{chunk_id}"
            segments.append((len(ids), len(ids) + len(piece_ids), chunk_id, digest, document))
            ids += piece_ids
        self.params = RequestParams(namespace, "first", 0.15, 1, tuple(segments))
        self.ids = np.array(ids, dtype=np.int32)


@pytest.fixture
def index():
    return KvIndex(10_000)


@pytest.fixture
def classifier(index):
    return make(index)


def make(index, head=HEAD, min_chunk_tokens=8):
    return Classifier(index, KeyMaker({}, head), head, size=EntrySize(BYTES), min_chunk_tokens=min_chunk_tokens)


def classify(classifier, prompt, store=True, lower=0, upper=None):
    upper = prompt.ids.size - 1 if upper is None else upper
    return classifier.classify(prompt.params, prompt.ids, store=store, lower=lower, upper=upper)


def store_canonical(classifier, index, *chunks, namespace="tenant"):
    """As a prewarm does: each behind the head, with a token after it."""
    for ids, chunk_id in chunks:
        for finding in classify(classifier, Prompt(HEAD, (ids, chunk_id), (5,), namespace=namespace)):
            for handle in (finding.segment.handle, finding.segment.capture):
                if handle is not None:
                    index.commit(handle)
                    index.release(handle)


def test_findings_tile_the_prompt_with_the_head_on_its_own(classifier):
    prompt = Prompt((*HEAD, 50, 51), (A, "a"), (B, "b"), QUESTION)
    findings = classify(classifier, prompt)
    edges = [(finding.segment.start, finding.segment.stop) for finding in findings]
    assert edges == [(0, 4), (4, 6), (6, 26), (26, 56), (56, 59)]
    assert [finding.chunk for finding in findings] == [None, 0, 1, 2, 3]


def test_a_first_chunk_behind_the_head_is_captured_and_then_exact(classifier, index):
    prompt = Prompt(HEAD, (A, "a"), QUESTION)
    head, chunk, _ = classify(classifier, prompt)
    assert (chunk.outcome, chunk.reason) == (Outcome.MISS, "not in the store; stored now")
    assert head.segment.capture is not None
    for finding in (head, chunk):
        index.commit(finding.segment.capture)
        index.release(finding.segment.capture)
    head, chunk, _ = classify(classifier, prompt)
    assert (chunk.outcome, chunk.segment.exact, chunk.segment.cached_at) == (Outcome.HIT, True, 4)
    assert head.segment.exact
    assert index.used_bytes == BYTES * (len(HEAD) + len(A))


def test_a_chunk_behind_another_is_not_stored(classifier, index):
    findings = classify(classifier, Prompt(HEAD, (A, "a"), (B, "b"), QUESTION))
    assert findings[2].segment.capture is None
    assert (findings[2].outcome, findings[2].reason) == (Outcome.MISS, "not in the store")
    assert {entry.chunk_id for entry in index} == {None, "a"}


@pytest.mark.parametrize("before", [(50,), (1, 2, 3), (9, 2, 3, 4)])
def test_behind_another_head_nothing_is_stored_or_exact(classifier, index, before):
    store_canonical(classifier, index, (A, "a"))
    entries = len(index)
    findings = classify(classifier, Prompt(before, (A, "a"), (B, "b"), QUESTION))
    hit = next(finding for finding in findings if finding.chunk == 1)
    assert hit.outcome is Outcome.HIT
    assert not hit.segment.exact
    assert hit.segment.start - hit.segment.cached_at == len(before) - len(HEAD)
    assert len(index) == entries


def test_a_hit_at_the_right_place_but_behind_other_text_is_not_exact(classifier, index):
    store_canonical(classifier, index, (A, "a"))
    _, hit, _ = classify(classifier, Prompt((9, 9, 9, 9), (A, "a"), QUESTION))
    assert hit.segment.start == hit.segment.cached_at
    assert not hit.segment.exact


def test_a_moved_hit_names_its_way(classifier, index):
    store_canonical(classifier, index, (A, "a"), (B, "b"))
    findings = classify(classifier, Prompt(HEAD, (B, "b"), (A, "a"), QUESTION))
    assert findings[2].reason == "moved by +30 tokens, other prefix"
    assert [finding.segment.exact for finding in findings[:3]] == [True, True, False]


def test_what_is_named_is_acquired_and_released_by_handle(classifier, index):
    store_canonical(classifier, index, (A, "a"))
    findings = classify(classifier, Prompt(HEAD, (A, "a"), (A, "a"), (B, "b"), QUESTION))
    for finding in findings:
        for handle in (finding.segment.handle, finding.segment.capture):
            if handle is not None:
                index.release(handle)
    assert all(entry.users == 0 for entry in index)
    assert index.check() == []


def test_small_chunks_are_refused_with_both_numbers(classifier, index):
    _, chunk, _ = classify(classifier, Prompt(HEAD, (A[:7], "a"), QUESTION))
    assert chunk.outcome is Outcome.REFUSED
    assert "7 tokens" in chunk.reason
    assert "min_chunk_tokens=8" in chunk.reason
    assert all(entry.chunk_id is None for entry in index)


def test_namespaces_see_nothing_of_each_other(classifier, index):
    store_canonical(classifier, index, (A, "a"))
    findings = classify(classifier, Prompt(HEAD, (A, "a"), QUESTION, namespace="other"))
    assert findings[1].outcome is Outcome.MISS
    assert findings[0].segment.handle is None
    assert len({entry.key for entry in index}) == 4


def test_a_full_store_is_said(index):
    small = KvIndex(BYTES * len(A) - 1)
    findings = classify(make(small, head=()), Prompt((A, "a"), QUESTION))
    assert (findings[0].outcome, findings[0].reason) == (Outcome.MISS, "not in the store, which has no room")
    assert len(small) == 0


def test_storing_can_be_off(classifier, index):
    findings = classify(classifier, Prompt(HEAD, (A, "a"), QUESTION), store=False)
    assert findings[1].reason == "not in the store"
    assert len(index) == 0


def test_what_is_being_computed_is_a_miss_and_awaited(classifier, index):
    prompt = Prompt(HEAD, (A, "a"), QUESTION)
    assert not classifier.awaits_pending(prompt.params, prompt.ids)
    classify(classifier, prompt)
    other = Prompt(HEAD, (B, "b"), (A, "a"), QUESTION)
    assert classifier.awaits_pending(other.params, other.ids)
    findings = classify(classifier, other)
    assert findings[2].outcome is Outcome.MISS
    assert findings[2].segment.handle is None
    assert "right now" in findings[2].reason


def test_a_chunk_named_twice_is_reserved_once(classifier, index):
    findings = classify(make(index, head=()), Prompt((A, "a"), (A, "a"), QUESTION))
    assert findings[0].segment.capture is not None
    assert findings[1].segment.capture is None
    assert len(index) == 1


@pytest.mark.parametrize(("lower", "upper"), [(5, None), (0, 23)])
def test_what_is_not_computed_whole_is_not_reserved(classifier, index, lower, upper):
    findings = classify(classifier, Prompt(HEAD, (A, "a"), QUESTION), lower=lower, upper=upper)
    assert findings[1].segment.capture is None
    assert all(entry.chunk_id is None for entry in index)


def test_a_head_that_is_not_computed_whole_is_not_reserved(classifier, index):
    """vLLM computes the last token itself, so the head of a prompt that is the head alone is never captured."""
    classify(classifier, Prompt(HEAD))
    assert len(index) == 0


def test_the_whole_digest_is_compared_on_every_hit(classifier, index):
    store_canonical(classifier, index, (A, "a"))
    _, chunk, _ = classify(classifier, Prompt(HEAD, (A, "other text"), QUESTION))
    assert chunk.outcome is Outcome.REFUSED
    assert "sha256" in chunk.reason
    assert chunk.segment.handle is None


def test_a_collision_of_keys_is_refused(classifier, index):
    store_canonical(classifier, index, (A, "a"))
    entry = next(entry for entry in index if entry.chunk_id == "a")
    entry.token_ids = entry.token_ids + 1
    _, chunk, _ = classify(classifier, Prompt(HEAD, (A, "a"), QUESTION))
    assert chunk.outcome is Outcome.REFUSED
    assert chunk.segment.handle is None


def test_documents_are_noted_at_each_sight(classifier, index):
    store_canonical(classifier, index, (A, "a"))
    for document in ("x.md", "y.md", "x.md"):
        classify(classifier, Prompt(HEAD, (A, "a", document), QUESTION))
    (entry,) = (entry for entry in index if entry.chunk_id == "a")
    assert entry.documents == {"x.md", "y.md"}


def test_stored_token_ids_do_not_keep_the_prompt_alive(classifier, index):
    prompt = Prompt(HEAD, (A, "a"), QUESTION)
    classify(classifier, prompt)
    prompt.ids[:] = 0
    (entry,) = (entry for entry in index if entry.chunk_id == "a")
    assert entry.token_ids.tolist() == list(A)
    assert entry.token_ids.base is None


def test_compressed_kv_is_never_exact(index):
    lossy = Classifier(index, KeyMaker({}, HEAD), HEAD, size=EntrySize(BYTES), min_chunk_tokens=8, lossless=False)
    store_canonical(lossy, index, (A, "a"))
    head, chunk, _ = classify(lossy, Prompt(HEAD, (A, "a"), QUESTION))
    assert (head.segment.exact, chunk.segment.exact) == (False, False)
    assert chunk.outcome is Outcome.HIT
    assert chunk.reason == "same prefix as when it was stored, compressed"
