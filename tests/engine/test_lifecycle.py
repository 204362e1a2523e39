"""Closing, dying, and starting again in the same process."""

import concurrent.futures
import os
import signal
import threading

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
    text = engine.generate(prompt, max_tokens=4).text
    with start_engine() as other:
        assert other.generate(prompt, max_tokens=4).text == text
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
    assert engine.generate(prompt, max_tokens=4).text == text


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
