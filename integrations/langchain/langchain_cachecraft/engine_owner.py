"""Which engine a chat model has: one it was given, or one that it starts when it is needed and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Self

from langchain_core.language_models.chat_models import BaseChatModel
from pydantic import Field, model_validator

from cachecraft_rag.closing import Closing
from cachecraft_rag.config import EngineConfig
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.interface import Engine
from cachecraft_rag.lazy import LazyEngine

# Standard parameters of LangChain's chat models that say how to reach a server; there is none.
_OF_SERVERS = frozenset({"timeout", "max_retries", "api_key"})


class EngineOwner(BaseChatModel, Closing):
    """The part of a chat model that has the engine; copies of the model share it."""

    model: str | None = None
    engine: Engine | None = Field(default=None, exclude=True, repr=False)
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Options of `EngineConfig` for an engine that is started here: `dtype`, `max_model_len`, `cpu_store_gb`, ..."""
    base_url: str | None = None

    lazy: LazyEngine | None = Field(default=None, exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            aliases = {option.alias for option in cls.model_fields.values()}
            unknown = sorted(set(values) - set(cls.model_fields) - aliases - _OF_SERVERS)
            if unknown:
                raise InvalidInput(
                    f"ChatCachecraft has no parameter {', '.join(map(repr, unknown))}: options of the engine go into "
                    "engine_options={...}, further sampling parameters of vLLM into each call or bind(...)"
                )
        return values

    @model_validator(mode="after")
    def _one_engine(self) -> Self:
        if self.base_url is not None:
            raise InvalidInput(
                f"base_url={self.base_url!r}: remote engines are not supported yet; leave it out, and give model= or "
                "engine="
            )
        if self.engine is None:
            self._prepare_engine()
        elif self.engine_options:
            raise InvalidInput(
                f"engine_options={self.engine_options!r} cannot change an engine that runs already: give them to it "
                "when you make it, or give model= in place of engine="
            )
        serving = self._model_name
        if self.model is None:
            self.model = serving
        elif self.model != serving:
            raise InvalidInput(f"model={self.model!r} is not what the engine runs, {serving!r}: leave model out")
        return self

    def _prepare_engine(self) -> None:
        if self.model is None:
            raise InvalidInput("give model=, a model's name or folder, or engine=, one that runs already")
        try:
            config = EngineConfig(self.model, **self.engine_options)
        except TypeError as error:
            raise InvalidInput(f"engine_options={self.engine_options!r}: {error}") from error
        if self.lazy is None:
            self.lazy = LazyEngine(config)
        elif self.lazy.config != config:  # in a copy
            raise InvalidInput(
                f"model={self.model!r} with engine_options={self.engine_options!r} is another engine than the one that "
                "this copy shares: make a ChatCachecraft of its own for it"
            )

    @property
    def _model_name(self) -> str:
        if self.engine is not None:
            return self.engine.model_name
        assert self.lazy is not None
        return self.lazy.config.model

    def start(self) -> Engine:
        """The engine, started if it wasn't yet."""
        if self.engine is not None:
            return self.engine
        assert self.lazy is not None
        return self.lazy.get()

    @property
    def started_engine(self) -> Engine | None:
        """The engine, if it runs."""
        return self.engine if self.lazy is None else self.lazy.made

    def close(self) -> None:
        """End the engine that was started here, for all copies of this model. Safe to call twice."""
        if self.lazy is not None:
            self.lazy.close()

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
