import os
import time

import numpy as np
import pytest

from cachecraft_rag.bench.quality.kept_logits import KeptLogits

LOGITS = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
TOKENS = tuple(LOGITS.argmax(axis=-1).tolist())


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "out.json.logits"


def test_what_was_kept_is_there_in_the_next_run(folder):
    KeptLogits(folder, "run").add("question", LOGITS)
    found = KeptLogits(folder, "run").get("question", TOKENS)
    assert np.array_equal(found, LOGITS)
    assert found.dtype == np.float32
    assert len(list(folder.iterdir())) == 1


def test_another_run_or_question_finds_nothing(folder):
    KeptLogits(folder, "run").add("question", LOGITS)
    assert KeptLogits(folder, "another").get("question", TOKENS) is None
    assert KeptLogits(folder, "run").get("another", TOKENS) is None


def test_logits_that_did_not_lead_to_the_answer_are_not_used(folder):
    kept = KeptLogits(folder, "run")
    kept.add("question", LOGITS)
    assert kept.get("question", (*TOKENS[:2], TOKENS[2] + 1)) is None
    assert kept.get("question", TOKENS[:2]) is None


@pytest.mark.parametrize("content", [b"", b"something else", None])
def test_a_damaged_file_is_none(folder, content):
    kept = KeptLogits(folder, "run")
    kept.add("question", LOGITS)
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes()[:-5] if content is None else content)
    assert kept.get("question", TOKENS) is None


def test_without_a_folder_nothing_is_kept():
    kept = KeptLogits(None, "run")
    kept.add("question", LOGITS)
    assert kept.get("question", TOKENS) is None


def test_what_an_interruption_left_half_written_is_deleted(folder, monkeypatch):
    KeptLogits(folder, "run").add("question", LOGITS)

    def interrupt(file, _):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        KeptLogits(folder, "run").add("another", LOGITS)
    (folder / "note.txt").touch()
    (partial,) = folder.glob("*.partial")
    KeptLogits(folder, "run")  # another process may be writing it
    assert partial.exists()
    two_hours_ago = time.time() - 7200
    os.utime(partial, (two_hours_ago, two_hours_ago))
    assert np.array_equal(KeptLogits(folder, "run").get("question", TOKENS), LOGITS)
    assert sorted(path.suffix for path in folder.iterdir()) == [".npy", ".txt"]
