"""Engines that are started when they are first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from cachecraft_rag.config import EngineConfig
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.interface import Engine
from cachecraft_rag.lazy import LazyEngine


class EngineHolder:
    """An engine that was given, or that is started once, by whichever thread or task asks first.

    Raises `InvalidInput` at once for options that no engine takes.
    """

    def __init__(self, engine: Engine | None, model: str, options: Mapping[str, Any]) -> None:
        if engine is not None and not isinstance(engine, Engine):
            raise InvalidInput(f"engine={engine!r:.80} is no engine; give a ChunkEngine, or leave it out")
        self._given = engine
        self._lazy = None if engine is not None else LazyEngine(_config(model, options))

    @property
    def max_model_len(self) -> int | None:
        """Tokens of the context, where they are known without starting the engine."""
        running = self._running
        if running is not None:
            return running.max_model_len
        return None if self._lazy is None else self._lazy.config.max_model_len

    def context_length(self) -> int:
        """`max_model_len`, else what the model's own config says; starts the engine only where that says nothing."""
        return self.max_model_len or self._configured_length or self.get().max_model_len

    @cached_property
    def _configured_length(self) -> int | None:
        """Read once: LlamaIndex asks for an LLM's metadata several times a query."""
        from transformers import AutoConfig

        assert self._lazy is not None
        try:
            config = AutoConfig.from_pretrained(self._lazy.config.model).get_text_config()
        except (OSError, ValueError):  # not found, or of a kind that only the engine may know
            return None
        length = getattr(config, "max_position_embeddings", None)
        return length if isinstance(length, int) and length > 0 else None

    @property
    def _running(self) -> Engine | None:
        return self._given if self._lazy is None else self._lazy.made

    def get(self) -> Engine:
        if self._given is not None:
            return self._given
        assert self._lazy is not None
        return self._lazy.get()

    async def aget(self) -> Engine:
        """`get` without blocking the event loop while the engine starts."""
        return self.get() if self._running is not None else await asyncio.to_thread(self.get)

    def close(self) -> None:
        """End the engine if it was started here. Safe to call twice."""
        if self._lazy is not None:
            self._lazy.close()

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)


def _config(model: str, options: Mapping[str, Any]) -> EngineConfig:
    if not model:
        raise InvalidInput("give model= (the name or folder of a Hugging Face model), or engine=")
    try:
        return EngineConfig(model, **options)
    except TypeError as error:
        raise InvalidInput(f"engine_options={dict(options)!r} are not options of EngineConfig: {error}") from error
