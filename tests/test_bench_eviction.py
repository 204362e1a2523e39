import json

import pytest

from cachecraft_rag.bench.eviction import bench_eviction, simulate
from cachecraft_rag.bench.streams import Stream, retrieved, skewed
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.store.eviction import FrequencyReuse, LeastRecentlyUsed


def test_hits_are_counted_over_chunks_and_sizes():
    stream = Stream("s", (10, 30), ((0, 1), (1, 0), (0,)))
    rate = simulate(stream, LeastRecentlyUsed(), 1.0)
    assert (rate.hits, rate.tokens) == (3 / 5, 50 / 90)


def test_what_does_not_fit_is_evicted_and_missed():
    stream = Stream("s", (10, 10), ((0,), (1,), (0,), (1,)))
    assert simulate(stream, LeastRecentlyUsed(), 0.5).hits == 0.0


@pytest.mark.parametrize("drift", [False, True])
def test_the_score_keeps_at_least_the_hits_of_lru_where_popularity_is_skewed(drift):
    stream = skewed(1500, 300, 5, drift=drift)
    for share in (0.25, 0.5):
        assert simulate(stream, FrequencyReuse(), share).hits >= simulate(stream, LeastRecentlyUsed(), share).hits


@pytest.fixture
def files(tmp_path):
    passages, questions = tmp_path / "passages.jsonl", tmp_path / "questions.jsonl"
    texts = ["Bees make honey in hives.", "Goats climb the steep rocks.", "Glass is blown from molten sand."]
    passages.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    questions.write_text("".join(json.dumps({"question": q}) + "\n" for q in ("Who makes honey?", "What is glass?")))
    return passages, questions


def test_questions_find_their_passages(files):
    stream = retrieved(*files, 1, shuffled=False)
    assert stream.questions == ((0,), (2,))
    assert stream.sizes == (5, 5, 6)
    assert sorted(retrieved(*files, 1, shuffled=True).questions) == [(0,), (2,)]


def test_a_bad_file_is_named(files, tmp_path):
    with pytest.raises(InvalidInput, match=r"nothing\.jsonl"):
        retrieved(tmp_path / "nothing.jsonl", files[1], 1, shuffled=False)
    files[0].write_text("{}\n")
    with pytest.raises(InvalidInput, match="'text'"):
        retrieved(*files, 1, shuffled=False)


def test_the_result_is_a_table_and_json():
    result = bench_eviction([skewed(50, 30, 3, drift=False)])
    assert len(result.rates) == 6
    assert "lru" in str(result)
    assert len(json.loads(json.dumps(result.to_dict()))["rates"]) == 6
