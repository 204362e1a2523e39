"""An engine without a model: it keeps books of chunks as the real one does, and says back what it was asked."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cachecraft_rag.answer import Answer, Delta, PrewarmReport
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.closing import Closing
from cachecraft_rag.config import DEFAULT_POLICY
from cachecraft_rag.errors import EngineClosed, InvalidInput
from cachecraft_rag.interface import REQUEST_OPTIONS, check_delete
from cachecraft_rag.prompt import JOINER, ChunkPrompt, spell_out
from cachecraft_rag.report import NOT_STORED, ChunkReport, Outcome, RequestReport
from cachecraft_rag.testing.fake_words import answer_to, words

_SAMPLING_OPTIONS = frozenset(
    {
        "bad_words",
        "frequency_penalty",
        "ignore_eos",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "repetition_penalty",
        "seed",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "structured_outputs",
        "temperature",
        "top_k",
        "top_p",
    }
)
_TEMPLATE_TOKENS = 2  # the fake's chat template, for each message


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """One request as the fake got it."""

    prompt: ChunkPrompt
    options: Mapping[str, Any]


_Books = dict[str, set[str]]  # stored chunks of one namespace: id to the documents it is part of


class FakeEngine(Closing):
    """Has the interface of `ChunkEngine`; its tokens are words, and its answers come from `answer`.

    `answer`: what it says, or a function of the prompt; by default it repeats the last text, makes an instance of the
    schema where the output is structured, and calls the tool that is named where tools are offered. `requests`: all
    it was sent. `running` and `aborted`: streams that are open, and those that were not read to their end. `delay`:
    seconds before each word.
    """

    def __init__(
        self,
        answer: str | Callable[[ChunkPrompt], str] | None = None,
        *,
        model_name: str = "fake",
        max_model_len: int = 8192,
        recompute_ratio: float = 0.15,
        min_chunk_tokens: int = 1,
        delay: float = 0.0,
    ) -> None:
        self.model_name = model_name
        self.max_model_len = max_model_len
        self.requests: list[FakeRequest] = []
        self.prewarmed: list[str] = []
        self.running = self.aborted = 0
        self.closed = False
        self._answer = answer
        self._ratio = recompute_ratio
        self._min_chunk_tokens = min_chunk_tokens
        self._delay = delay
        self._namespaces: dict[str, _Books] = {}
        self._lock = threading.RLock()

    def count_tokens(self, prompt: ChunkPrompt | str) -> int:
        if isinstance(prompt, str):
            return len(words(prompt))
        return sum(
            _TEMPLATE_TOKENS + sum(len(words(text)) for _, text in spell_out(message.parts, JOINER))
            for message in prompt.messages
        )

    def generate(self, prompt: ChunkPrompt, sampling: Any = None, **options: Any) -> Answer:
        return _last(list(self.stream(prompt, sampling, **options)))

    async def agenerate(self, prompt: ChunkPrompt, sampling: Any = None, **options: Any) -> Answer:
        return _last([delta async for delta in self.astream(prompt, sampling, **options)])

    def stream(self, prompt: ChunkPrompt, sampling: Any = None, **options: Any) -> Iterator[Delta]:
        with self._request(prompt, sampling, options) as deltas:
            for delta in deltas:
                time.sleep(self._delay)
                yield delta

    async def astream(self, prompt: ChunkPrompt, sampling: Any = None, **options: Any) -> AsyncIterator[Delta]:
        with self._request(prompt, sampling, options) as deltas:
            for delta in deltas:
                await asyncio.sleep(self._delay)
                yield delta

    def prewarm(
        self, chunks: Iterable[Chunk | str], *, namespace: str | None = None, pin: bool = False, progress: bool = True
    ) -> PrewarmReport:
        self._open()
        placed = [Chunk.of(chunk) for chunk in chunks]
        if not placed:
            raise InvalidInput("there is nothing to prewarm: give at least one chunk")
        stored, present, refused, tokens = [], [], {}, 0
        with self._lock:
            books = self._books(namespace)
            for chunk in {chunk.id: chunk for chunk in placed}.values():
                count = len(words(chunk.text))
                if chunk.id in books:
                    present.append(chunk.id)
                elif count < self._min_chunk_tokens:
                    refused[chunk.id] = f"its {count} tokens are fewer than min_chunk_tokens={self._min_chunk_tokens}"
                    continue
                else:
                    stored.append(chunk.id)
                    tokens += count
            for chunk in placed:
                if chunk.id not in refused:
                    _store(books, chunk)
            self.prewarmed += stored
        return PrewarmReport(tuple(stored), tuple(present), refused, tokens)

    async def aprewarm(
        self, chunks: Iterable[Chunk | str], *, namespace: str | None = None, pin: bool = False, progress: bool = False
    ) -> PrewarmReport:
        await asyncio.sleep(0)
        return self.prewarm(chunks, namespace=namespace, pin=pin, progress=progress)

    def delete(
        self,
        *,
        chunk_ids: Iterable[str] | None = None,
        document_id: str | None = None,
        everything: bool = False,
        namespace: str | None = None,
    ) -> list[str]:
        self._open()
        check_delete(chunk_ids, document_id, everything)
        with self._lock:
            chunks = self._books(namespace)
            gone = list(chunks) if everything else [name for name in chunk_ids or () if name in chunks]
            if document_id is not None:
                owned = [name for name, documents in chunks.items() if document_id in documents]
                for name in owned:
                    chunks[name].discard(document_id)
                gone = [name for name in owned if not chunks[name]]
            for name in gone:
                del chunks[name]
            return gone

    async def adelete(
        self,
        *,
        chunk_ids: Iterable[str] | None = None,
        document_id: str | None = None,
        everything: bool = False,
        namespace: str | None = None,
    ) -> list[str]:
        await asyncio.sleep(0)
        return self.delete(chunk_ids=chunk_ids, document_id=document_id, everything=everything, namespace=namespace)

    def stored(self, namespace: str | None = None) -> Mapping[str, set[str]]:
        """The chunks of one namespace: id to the documents it is part of."""
        return self._books(namespace)

    def stats(self) -> dict[str, Any]:
        self._open()
        return {"chunks": sum(len(books) for books in self._namespaces.values())}

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.close()

    @contextmanager
    def _request(self, prompt: ChunkPrompt, sampling: Any, options: Mapping[str, Any]) -> Iterator[Iterator[Delta]]:
        self._open()
        if not isinstance(prompt, ChunkPrompt):
            raise InvalidInput(f"prompt={prompt!r:.60} is not a ChunkPrompt")
        if sampling is not None:
            raise InvalidInput("the fake engine takes sampling parameters as keywords only")
        unknown = sorted(set(options) - set(REQUEST_OPTIONS) - _SAMPLING_OPTIONS)
        if unknown:
            raise InvalidInput(f"unknown sampling parameters: {', '.join(unknown)}")
        tokens = self.count_tokens(prompt)
        if tokens + 1 > self.max_model_len:
            raise InvalidInput(f"the prompt has {tokens} tokens but the model's context holds {self.max_model_len}")
        with self._lock:
            self.requests.append(FakeRequest(prompt, dict(options)))
            self.running += 1
            report = self._serve(prompt, tokens, options)
        finished = False

        def deltas() -> Iterator[Delta]:
            nonlocal finished
            for delta in self._deltas(prompt, tokens, options, report):
                finished = delta.answer is not None
                yield delta

        try:
            yield deltas()
        finally:
            with self._lock:
                self.running -= 1
                self.aborted += not finished

    def _deltas(
        self, prompt: ChunkPrompt, tokens: int, options: Mapping[str, Any], report: RequestReport | None
    ) -> Iterator[Delta]:
        text = self._text(prompt, options)
        stop_reason = None
        for stop in [options["stop"]] if isinstance(options.get("stop"), str) else options.get("stop") or ():
            if stop in text:
                text, stop_reason = text[: text.index(stop)], stop
        pieces = words(text)
        limit = options.get("max_tokens")
        cut = limit is not None and len(pieces) > limit
        pieces = pieces[:limit] if cut else pieces
        for number, piece in enumerate(pieces):
            yield Delta(piece, (number,))
        answer = Answer(
            text="".join(pieces),
            token_ids=tuple(range(len(pieces))),
            prompt_tokens=tokens,
            finish_reason="length" if cut else "stop",
            first_token_seconds=0.0,
            report=report,
            stop_reason=stop_reason,
        )
        yield Delta("", (), answer)

    def _text(self, prompt: ChunkPrompt, options: Mapping[str, Any]) -> str:
        if self._answer is None:
            return answer_to(prompt, options.get("structured_outputs"))
        return self._answer if isinstance(self._answer, str) else self._answer(prompt)

    def _serve(self, prompt: ChunkPrompt, tokens: int, options: Mapping[str, Any]) -> RequestReport | None:
        """The request's report; chunks that are missed are stored, as the real engine does behind the answer."""
        if not options.get("reuse", True) or not prompt.chunks:
            return None
        books = self._books(options.get("namespace"))
        ratio = options.get("recompute_ratio", self._ratio)
        ratio = self._ratio if ratio is None else ratio
        reports, position, reused = [], 0, 0
        for message in prompt.messages:
            position += _TEMPLATE_TOKENS
            for part, text in spell_out(message.parts, JOINER):
                size = len(words(text))
                if isinstance(part, Chunk):
                    reports.append(self._chunk_report(books, part, position, size, ratio))
                    reused += reports[-1].reused
                position += size
        for chunk in prompt.chunks:
            if len(words(chunk.text)) >= self._min_chunk_tokens:
                _store(books, chunk)
        report = RequestReport(
            request_id=f"fake-{len(self.requests)}",
            policy=options.get("policy") or DEFAULT_POLICY,
            ratio=ratio,
            prompt_tokens=tokens,
            prefix_cache_tokens=0,
            computed_tokens=tokens - reused,
            chunks=tuple(reports),
        )
        return report.with_recovered(chunk.recovered for chunk in prompt.chunks)

    def _chunk_report(self, books: _Books, chunk: Chunk, offset: int, tokens: int, ratio: float) -> ChunkReport:
        outcome, reason, recomputed = Outcome.MISS, NOT_STORED, tokens
        if len(words(chunk.text)) < self._min_chunk_tokens:
            outcome, reason = Outcome.REFUSED, f"smaller than min_chunk_tokens={self._min_chunk_tokens}"
        elif chunk.id in books:
            outcome, reason, recomputed = Outcome.HIT, "stored", min(tokens, round(tokens * ratio))
        return ChunkReport(
            chunk.id,
            outcome,
            reason,
            offset,
            tokens,
            recomputed,
            recomputed == tokens,
            chunk.document_id,
        )

    def _books(self, namespace: str | None) -> _Books:
        return self._namespaces.setdefault("default" if namespace is None else namespace, {})

    def _open(self) -> None:
        if self.closed:
            raise EngineClosed("this engine is closed; start another one")


def _store(books: _Books, chunk: Chunk) -> None:
    documents = books.setdefault(chunk.id, set())
    if chunk.document_id is not None:
        documents.add(chunk.document_id)


def _last(deltas: list[Delta]) -> Answer:
    answer = deltas[-1].answer
    assert answer is not None
    return answer
