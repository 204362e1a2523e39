"""What one process prewarms, another serves from disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.verification.cases import passage

COUNT, SENTENCES = 6, 6


def prewarm_elsewhere(store_dir, hash_seed):
    script = Path(__file__).with_name("prewarm_process.py")
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    command = [sys.executable, script, store_dir, str(COUNT), str(SENTENCES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def store_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("restart") / "store"
    assert prewarm_elsewhere(folder, 1) == {"stored": COUNT, "present": 0, "faults": []}
    return folder


def chunks():
    return [passage(seed, SENTENCES) for seed in range(COUNT)]


def test_a_second_prewarm_in_a_new_process_finds_all(store_dir):
    assert prewarm_elsewhere(store_dir, 2) == {"stored": 0, "present": COUNT, "faults": []}


def test_another_process_serves_from_disk(store_dir, start_engine, engine, outcomes):
    passages = chunks()
    engine.prewarm(passages, progress=False)
    orders = [passages[::-1], passages[3:] + passages[:3], passages[1:] + passages[:1]]
    with start_engine(store_dir=store_dir, enable_prefix_caching=False) as other:
        for number, order in enumerate(orders):
            prompt = ChunkPrompt.chat(order, f"Question {number}?")
            answer = other.generate(prompt, max_tokens=8)
            assert outcomes(answer) == ["HIT"] * COUNT
            assert engine.generate(prompt, max_tokens=8).text == answer.text
        stats = other.stats()
        assert (stats["chunks_on_disk"], stats["promoted"], stats["stored"]) == (COUNT, COUNT + 1, 0)  # with the head
        assert other.check() == []


def test_prefetched_chunks_are_read_ahead(store_dir, start_engine):
    passages = chunks()
    with start_engine(store_dir=store_dir) as other:
        assert sorted(other.prefetch(passages[:3]).result()) == sorted(chunk.id for chunk in passages[:3])
        assert other.generate(ChunkPrompt.chat(passages[:3][::-1], "Who?"), max_tokens=1).report.hits == 3
        assert other.prefetch(passages[:3]).result() == []


def test_prefetch_without_a_disk_does_nothing(engine, passages):
    assert engine.prefetch(passages(1)).result() == []
