"""What the KV of a variant has seen: the pieces of prompt that it was computed behind, and how it attended to them."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class AttentionStatistics:
    """How a chunk's tokens attended, summed over pairs of tokens and averaged over heads and the layers looked at.

    `inter`: on each piece in front, the head of the prompt left out, shape [pieces]; `intra`: on the chunk itself;
    `on_context`: of each token on all of those pieces, shape [tokens].
    """

    inter: npt.NDArray[np.float32]
    intra: float
    on_context: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class SeenContext:
    """`base`: key of the same chunk's canonical KV; `keys`, `tokens`: of the pieces in front, in order, head left out.

    `statistics` is None until they were measured.
    """

    base: str
    keys: tuple[str, ...]
    tokens: tuple[int, ...]
    statistics: AttentionStatistics | None = None

    def to_text(self) -> str:
        """For the header of a file; statistics must be there."""
        assert self.statistics is not None
        return json.dumps(
            {
                "base": self.base,
                "keys": self.keys,
                "tokens": self.tokens,
                "inter": _encoded(self.statistics.inter),
                "intra": self.statistics.intra,
                "on_context": _encoded(self.statistics.on_context),
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Inverse of `to_text`; raises ValueError, KeyError or TypeError for what it did not write."""
        fields = json.loads(text)
        keys, tokens = tuple(map(str, fields["keys"])), tuple(map(int, fields["tokens"]))
        inter, on_context = _decoded(fields["inter"]), _decoded(fields["on_context"])
        if not len(keys) == len(tokens) == inter.size:
            raise ValueError(f"{len(keys)} keys, {len(tokens)} lengths and {inter.size} attentions of pieces in front")
        return cls(str(fields["base"]), keys, tokens, AttentionStatistics(inter, float(fields["intra"]), on_context))


def _encoded(values: npt.NDArray[np.float32]) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _decoded(text: str) -> npt.NDArray[np.float32]:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float32)
