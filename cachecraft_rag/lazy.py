"""An engine that is made when it is first needed, once."""

from __future__ import annotations

import threading

from cachecraft_rag.config import EngineConfig
from cachecraft_rag.errors import EngineClosed
from cachecraft_rag.interface import Engine


class LazyEngine:
    """Shared by an integration's model and its copies. Any number of threads may ask for the engine at once."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._engine: Engine | None = None
        self._closed = False
        self._lock = threading.Lock()

    @property
    def made(self) -> Engine | None:
        """The engine, if it was needed before."""
        return self._engine

    def get(self) -> Engine:
        """The engine; the first call takes seconds, since it loads the model."""
        with self._lock:
            if self._closed:
                raise EngineClosed("this model was closed, and its engine with it; make another one")
            if self._engine is None:
                from cachecraft_rag.engine import ChunkEngine

                self._engine = ChunkEngine(self.config)
            return self._engine

    def close(self) -> None:
        """End the engine if there is one. Safe to call twice."""
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()
