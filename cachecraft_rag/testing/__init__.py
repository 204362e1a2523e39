"""A stand-in for the engine that needs neither vLLM nor a model, for tests of what is built on top of one."""

from cachecraft_rag.testing.fake_engine import FakeEngine

__all__ = ["FakeEngine"]
