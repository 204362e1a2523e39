"""What an integration may ask of an engine, be it embedded, remote or the fake of the tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Protocol, runtime_checkable

from cachecraft_rag.answer import Answer, Delta, PrewarmReport
from cachecraft_rag.chunk import Chunk
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import ChunkPrompt

# Keywords of a request that are the engine's own; all others are vLLM's sampling parameters.
REQUEST_OPTIONS = ("policy", "recompute_ratio", "min_run", "namespace", "reuse", "fresh", "cache_salt")


@runtime_checkable
class Engine(Protocol):
    """See `ChunkEngine`, which is one, for what each method does."""

    @property
    def model_name(self) -> str: ...

    @property
    def max_model_len(self) -> int: ...

    def count_tokens(self, prompt: ChunkPrompt | str) -> int: ...

    def generate(self, prompt: ChunkPrompt, sampling: Any = None, **options: Any) -> Answer: ...

    async def agenerate(self, prompt: ChunkPrompt, sampling: Any = None, **options: Any) -> Answer: ...

    def stream(self, prompt: ChunkPrompt, sampling: Any = None, **options: Any) -> Iterator[Delta]: ...

    def astream(self, prompt: ChunkPrompt, sampling: Any = None, **options: Any) -> AsyncIterator[Delta]: ...

    def prewarm(
        self, chunks: Iterable[Chunk | str], *, namespace: str | None = None, pin: bool = False, progress: bool = True
    ) -> PrewarmReport: ...

    async def aprewarm(
        self, chunks: Iterable[Chunk | str], *, namespace: str | None = None, pin: bool = False, progress: bool = False
    ) -> PrewarmReport: ...

    def delete(
        self,
        *,
        chunk_ids: Iterable[str] | None = None,
        document_id: str | None = None,
        everything: bool = False,
        namespace: str | None = None,
    ) -> list[str]: ...

    async def adelete(
        self,
        *,
        chunk_ids: Iterable[str] | None = None,
        document_id: str | None = None,
        everything: bool = False,
        namespace: str | None = None,
    ) -> list[str]: ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...


def check_delete(chunk_ids: Iterable[str] | None, document_id: str | None, everything: bool) -> None:
    """Raise `InvalidInput` unless exactly one of the arguments of `delete` was given."""
    if (chunk_ids is not None) + (document_id is not None) + everything != 1:
        raise InvalidInput("delete() takes exactly one of chunk_ids=, document_id= and everything=True")
