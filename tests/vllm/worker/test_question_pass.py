"""Plans whose choice waits for the attention of the question."""

from dataclasses import replace

import numpy as np

from cachecraft_rag.reuse import StagedSpan
from cachecraft_rag.reuse.plan import PendingChoice
from cachecraft_rag.reuse.selection import RepairableChunk


def ask(worker, monkeypatch, staged, compute, *, end, chunks, ratio=0.2, lower=0):
    """Run a plan whose choice waits for the question in its last two rows."""
    monkeypatch.setattr("cachecraft_rag.vllm.question.tensor_parallel_mean", lambda values: values)
    plan = worker.message("q", compute, end=end, staged=staged)
    rows = np.arange(end - 2, end)
    question = PendingChoice("question", ratio, 1, rows, np.empty(0, np.int64), tuple(staged), tuple(chunks))
    asked = replace(plan, plan=replace(plan.plan, pending=question, num_computed_tokens=lower))
    results, _ = worker.run_all(asked)
    return results["q", 1]


def test_the_question_runs_first_and_its_attention_chooses(worker, monkeypatch):
    worker.stored_piece(1, 8, first_id=1)  # the larger an id, the more it is attended to
    span = StagedSpan(1, 0, 0, 8, 0)
    result = ask(worker, monkeypatch, [span], [8, 9], end=10, chunks=[RepairableChunk("00", 0, 8)], ratio=0.7)
    assert worker.forward.slices == [[[8, 9]], [[0, 1, 2, 3, 6, 7, 8, 9]]]
    assert worker.forward.places[0] == [[8, 9]]
    assert result.chosen.tolist() == [0, 1, 2, 3, 6, 7, 8, 9]
    assert (result.computed_tokens, result.slices) == (8, 2)
    assert result.selection_tokens == 2 * 1 / worker.shape[0]  # two rows, through the first layer


def test_gaps_are_closed_for_the_pass_and_opened_again(worker, monkeypatch):
    worker.stored_piece(1, 4, first_id=1)
    worker.stored_piece(2, 4, first_id=5)
    spans = [StagedSpan(1, 0, 0, 4, 0), StagedSpan(2, 0, 6, 10, 0)]  # 4 and 5 are a miss
    chunks = [RepairableChunk("00", 0, 4), RepairableChunk("11", 6, 10)]
    ask(worker, monkeypatch, spans, [4, 5, 10, 11], end=12, chunks=chunks, ratio=0.1)
    assert worker.forward.places[0] == [[8, 9]]
    assert worker.forward.slices[1:] == [[[0, 4, 5, 10, 11]]]
    assert worker.cached(0, range(12)) == [100, 2, 3, 4, 104, 105, 5, 6, 7, 8, 110, 111]


def test_what_is_lost_takes_no_part_in_the_choice(worker, monkeypatch):
    worker.stored_piece(1, 4, first_id=1)
    spans = [StagedSpan(1, 0, 0, 4, 0), StagedSpan(2, 0, 4, 8, 0)]
    chunks = [RepairableChunk("00", 0, 4), RepairableChunk("11", 4, 8)]
    result = ask(worker, monkeypatch, spans, [8, 9], end=10, chunks=chunks, ratio=0.1)
    assert set(result.missing) == {2}
    assert worker.forward.places[0] == [[4, 5]]
    assert {4, 5, 6, 7, 8, 9} <= set(result.chosen.tolist())


def test_shared_blocks_keep_their_places_in_the_pass(worker, monkeypatch):
    worker.stored_piece(1, 4, first_id=1)
    span = StagedSpan(1, 0, 6, 10, 0)
    chunks = [RepairableChunk("00", 6, 10)]
    ask(worker, monkeypatch, [span], [4, 5, 10, 11], end=12, chunks=chunks, ratio=0.1, lower=4)
    assert worker.forward.places[0] == [[8, 9]]
    assert worker.cached(0, range(4)) == [-1, -1, -1, -1]
