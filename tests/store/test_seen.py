import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from cachecraft_rag.store.container import Damaged
from cachecraft_rag.store.disk import Unreadable
from cachecraft_rag.store.seen import AttentionStatistics, SeenContext

FLOATS = st.floats(0, 1e6, width=32)


@st.composite
def contexts(draw):
    pieces = draw(st.integers(0, 6))
    statistics = AttentionStatistics(
        draw(arrays(np.float32, pieces, elements=FLOATS)),
        draw(FLOATS),
        draw(arrays(np.float32, draw(st.integers(1, 20)), elements=FLOATS)),
    )
    lengths = draw(st.lists(st.integers(1, 999), min_size=pieces, max_size=pieces))
    return SeenContext("b" * 64, tuple(f"{n:064x}" for n in range(pieces)), tuple(lengths), statistics)


@given(contexts())
def test_text_round_trip(seen):
    again = SeenContext.from_text(seen.to_text())
    assert (again.base, again.keys, again.tokens) == (seen.base, seen.keys, seen.tokens)
    assert again.statistics.inter.tobytes() == seen.statistics.inter.tobytes()
    assert again.statistics.on_context.tobytes() == seen.statistics.on_context.tobytes()
    assert again.statistics.intra == seen.statistics.intra


@given(contexts(), st.sampled_from(["base", "keys", "tokens", "inter", "intra", "on_context"]))
def test_what_lacks_something_is_refused(seen, name):
    fields = json.loads(seen.to_text())
    del fields[name]
    with pytest.raises((KeyError, ValueError, TypeError)):
        SeenContext.from_text(json.dumps(fields))


def test_pieces_without_attention_are_refused():
    statistics = AttentionStatistics(np.ones(1, np.float32), 1.0, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="2 keys, 2 lengths and 1 attentions"):
        SeenContext.from_text(SeenContext("b", ("x", "y"), (3, 4), statistics).to_text())


def test_a_variants_file_says_what_it_has_seen_and_that_it_is_one(store, put, header):
    statistics = AttentionStatistics(np.array([0.5, 2], np.float32), 3.0, np.arange(6, dtype=np.float32))
    seen = SeenContext("b" * 64, ("x", "y"), (3, 4), statistics)
    data = bytes(header("v").data_bytes)
    store.write(replace(header("v"), seen=seen), [memoryview(data)])
    put(store, "c")
    found = {one.key: one for one in store.scan()}
    assert found["c"].seen is None
    assert found["v"].seen.keys == ("x", "y")
    assert found["v"].seen.statistics.on_context.tolist() == [0, 1, 2, 3, 4, 5]
    assert found["v"].to_metadata()["version"] == "2"
    assert found["c"].to_metadata()["version"] == "1"


def test_a_header_whose_context_is_garbled_is_damaged(store, header, monkeypatch):
    statistics = AttentionStatistics(np.ones(1, np.float32), 3.0, np.ones(6, np.float32))
    seen = SeenContext("b" * 64, ("x",), (3,), statistics)
    monkeypatch.setattr(SeenContext, "to_text", lambda self: "{}")
    store.write(replace(header("v"), seen=seen), [memoryview(bytes(header("v").data_bytes))])
    monkeypatch.undo()
    with pytest.raises(Unreadable, match="damaged") as raised:
        store.header("v")
    assert isinstance(raised.value.__cause__, Damaged)
