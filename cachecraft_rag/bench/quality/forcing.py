"""A logits processor of vLLM that makes a request say given tokens and writes down the model's logits.

Top-k log-probabilities would cut a distribution's tail off, and the divergence of two tails has no bound. So the whole
rows go to a file, from inside the engine, before anything is forced.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

from cachecraft_rag.bench.quality.forced_engine import EXTRA_ARG, FOLDER

if TYPE_CHECKING:
    from vllm.v1.sample.logits_processor import BatchUpdate

_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, slots=True)
class _Forced:
    """`output_ids`: vLLM's own growing list of what the request has said."""

    path: Path
    token_ids: Sequence[int]
    output_ids: Sequence[int]


class ForcedTokens(LogitsProcessor):
    """Serves requests whose `extra_args["cachecraft_forcing"]` has a `name` and `token_ids`; leaves others alone.

    Row n of the file `name`, float32 of the vocabulary's length, is what the model gave for output token n. Token n is
    `token_ids[n]`; behind the last one the request goes on freely. The folder is in vLLM's additional_config.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self._folder = Path(vllm_config.additional_config[FOLDER])
        self._forced: dict[int, _Forced] = {}

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        wanted = (sampling_params.extra_args or {}).get(EXTRA_ARG)
        if wanted is not None and not _NAME.fullmatch(wanted["name"]):
            raise ValueError(f"name={wanted['name']!r} must be a plain file name of letters, digits, _ and -")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(self._forced, batch_update, self._start)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, forced in self._forced.items():
            step = len(forced.output_ids)
            self._write(forced.path, step, logits[row])
            if step < len(forced.token_ids):
                logits[row] = float("-inf")
                logits[row, forced.token_ids[step]] = 0.0
        return logits

    def _start(self, params: Any, _prompt_ids: list[int] | None, output_ids: list[int]) -> _Forced | None:
        wanted = (params.extra_args or {}).get(EXTRA_ARG)
        if wanted is None:
            return None
        return _Forced(self._folder / wanted["name"], wanted["token_ids"], output_ids)

    @staticmethod
    def _write(path: Path, step: int, logits: torch.Tensor) -> None:
        """In its place: steps of a prompt that is not through yet are written over by the one that counts."""
        row = logits.detach().to("cpu", torch.float32).numpy().tobytes()
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(step * len(row))
            file.write(row)
