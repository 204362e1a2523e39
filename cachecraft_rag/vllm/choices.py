"""Choices that were made for a prompt: the same prompt again is repaired at the same places."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

_LIMIT = 1024


class RememberedChoices:
    """Computed positions by `cache_salt`, which holds the whole prompt for every policy that runs a pass ahead.

    vLLM's prefix cache gives the same prompt its repaired blocks again, but for the last, partial one. A pass over
    those would see what it never saw before, and choose otherwise. The newest 1,024 prompts are remembered.
    """

    def __init__(self) -> None:
        self._chosen: OrderedDict[str, npt.NDArray[np.int32]] = OrderedDict()

    def get(self, salt: str | None) -> npt.NDArray[np.int32] | None:
        """All positions that were computed, sorted; None where the prompt is not remembered."""
        if salt is None or salt not in self._chosen:
            return None
        self._chosen.move_to_end(salt)
        return self._chosen[salt]

    def add(self, salt: str | None, first: int, positions: npt.NDArray[np.int64]) -> None:
        """Of a plan that began at position `first`; only one of the whole prompt is worth remembering."""
        if salt is None or first > 0:
            return
        self._chosen[salt] = positions.astype(np.int32)
        self._chosen.move_to_end(salt)
        while len(self._chosen) > _LIMIT:
            self._chosen.popitem(last=False)
