"""The errors a caller may see. Every message names the value that was wrong and the way out."""


class CachecraftError(Exception):
    """Base of all errors raised on purpose by this package."""


class InvalidInput(CachecraftError, ValueError):  # noqa: N818
    """The caller's input can't be used; another input can."""


class UnsupportedModel(CachecraftError):  # noqa: N818
    """The model, its tokenizer or its chat template is not one that is proven to work."""


class EngineClosed(CachecraftError, RuntimeError):  # noqa: N818
    """The engine was closed, or died, before or while the call was made."""


class StoreError(CachecraftError):
    """The store of caches can't be opened or written at all. (A damaged entry is a miss, not an error.)"""
