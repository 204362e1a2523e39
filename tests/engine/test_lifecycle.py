"""Closing, dying, and starting again in the same process."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cachecraft_rag import ChunkPrompt
from cachecraft_rag.errors import EngineClosed, InvalidInput


def test_closed_under_its_callers(start_engine, passages):
    prompt = ChunkPrompt.chat(passages(1), "Who?")
    with start_engine() as engine:
        stream = engine.stream(prompt, max_tokens=1500, ignore_eos=True)
        next(stream)
        caught = []

        def wait():
            try:
                engine.generate(prompt, max_tokens=1500, ignore_eos=True)
            except BaseException as error:
                caught.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        engine.submit(prompt, max_tokens=1).result()  # the long one was sent before this one
        engine.close()
        engine.close()
        thread.join(30)
        assert not thread.is_alive(), "a caller was left waiting"
        with pytest.raises(EngineClosed):
            list(stream)
        for call in (
            lambda: engine.generate(prompt),
            lambda: engine.generate_batch([prompt]),
            lambda: engine.submit(prompt),
            lambda: engine.stream(prompt),
            lambda: engine.astream(prompt),
            lambda: engine.prewarm(["text"]),
            lambda: engine.delete(everything=True),
            engine.stats,
            engine.check,
        ):
            with pytest.raises(EngineClosed, match="closed"):
                call()
    assert isinstance(caught[0], EngineClosed), repr(caught[0])


def test_another_starts_in_the_same_process_and_its_death_is_said(start_engine, engine, passages):
    prompt = ChunkPrompt.chat(passages(1), "Who?")
    text = engine.generate(prompt, max_tokens=4, recompute_ratio=1.0).text
    with start_engine() as other:
        assert other.generate(prompt, max_tokens=4, recompute_ratio=1.0).text == text
        assert other.check() == []
        future = other.submit(prompt, max_tokens=1500, ignore_eos=True)
        next(other.stream(prompt, max_tokens=4))
        manager = other._client.requests._llm.engine_core.resources.engine_manager
        for process in manager.processes:
            os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(EngineClosed):
            future.result(timeout=60)
        with pytest.raises(EngineClosed):
            other.submit(prompt, max_tokens=1).result(timeout=60)
    assert engine.generate(prompt, max_tokens=4, recompute_ratio=1.0).text == text


_STARTS_AND_WAITS = """
import os, sys, time
from cachecraft_rag import ChunkEngine

if __name__ == "__main__":
    engine = ChunkEngine(sys.argv[1], dtype="float32", kv_cache_gb=0.1, max_model_len=256, cpu_store_gb=0.1)
    manager = engine._client.requests._llm.engine_core.resources.engine_manager
    print(*[process.pid for process in manager.processes], flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_the_engine_process_ends_with_a_killed_parent(by, tmp_path):
    script = tmp_path / "start.py"
    script.write_text(_STARTS_AND_WAITS)
    command = [sys.executable, str(script), os.environ["CACHECRAFT_TEST_MODEL"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in next(line for line in parent.stdout if line.strip().isdigit()).split()]
        assert all(_runs(pid) for pid in pids)
        parent.send_signal(by)
        parent.wait()
        for _ in range(1200):  # a minute and more, as for the other hangs here
            if not any(_runs(pid) for pid in pids):
                return
            time.sleep(0.1)
        pytest.fail(f"engine processes {pids} outlive their parent")


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_cannot_start_says_why_and_leaves_no_thread():
    from cachecraft_rag import ChunkEngine

    before = threading.active_count()
    with pytest.raises(InvalidInput, match="no-such-folder"):
        ChunkEngine("/no-such-folder")
    with pytest.raises(InvalidInput, match="best"):
        ChunkEngine("/no-such-folder", policy="best")
    with pytest.raises(InvalidInput, match="no_such_argument"):
        ChunkEngine(os.environ["CACHECRAFT_TEST_MODEL"], vllm_args={"no_such_argument": 1})
    assert threading.active_count() == before


def test_a_cancelled_future_is_cancelled(engine, passages):
    future = engine.submit(ChunkPrompt.chat(passages(1), "Who?"), max_tokens=500, ignore_eos=True)
    assert future.cancel()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    assert engine.check() == []
