"""The selective forward: the model, run for scattered positions of several prompts over their paged caches.

Each run of neighbouring positions is handed to vLLM's attention backend as a request of its own that shares its
prompt's block table: `query_len` is the length of the run and `seq_len` the position after its last token. Causal
masking then lets a row at position p see exactly the keys 0..p of its prompt, staged or recomputed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.config import VllmConfig
from vllm.forward_context import set_forward_context
from vllm.v1.attention.backend import CommonAttentionMetadata

from cachecraft_rag.reuse import positions_to_runs
from cachecraft_rag.vllm.capture import CapturingImpl, Recorder

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SlicePart:
    """Rows of one prompt: sorted `positions`, their `token_ids`, and the prompt's block table.

    `places`: where in those blocks the rows lie, and so which rows they see; None: at their positions.
    """

    positions: Ids
    token_ids: Ids
    block_ids: Ids
    places: Ids | None = None

    @property
    def placed(self) -> Ids:
        return self.positions if self.places is None else self.places


def slots(positions: Ids, block_ids: Ids, block_size: int) -> Ids:
    """Slot of each position in the paged cache: vLLM's slot mapping."""
    return block_ids[positions // block_size] * block_size + positions % block_size


class SelectiveForward:
    """Runs the loaded model for slices, and writes staged K and V, through the attention backend's own functions."""

    def __init__(self, vllm_config: VllmConfig, kv_cache_config: Any, model: torch.nn.Module, device: torch.device):
        (group,) = kv_cache_config.kv_cache_groups
        context = vllm_config.compilation_config.static_forward_context
        self._config = vllm_config
        self._model = model
        self._device = device
        self.layer_names: tuple[str, ...] = tuple(sorted(group.layer_names, key=_layer_number))
        self.layers = [context[name] for name in self.layer_names]
        self.block_size: int = group.kv_cache_spec.block_size
        builder = self.layers[0].get_attn_backend().get_builder_cls()
        self._builder = builder(group.kv_cache_spec, list(self.layer_names), vllm_config, device)
        self.recorder = Recorder()
        for index, layer in enumerate(self.layers):
            layer.impl = CapturingImpl(layer.impl, index, self.recorder)

    def close(self) -> None:
        """Give every layer its own `impl` back."""
        for layer in self.layers:
            if isinstance(layer.impl, CapturingImpl):
                layer.impl = layer.impl._impl

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """Write rows of one layer into the paged cache.

        `key`, `value`: [rows, kv_heads, head_size]; `slot_mapping`: [rows] int64, as `slots` gives.
        """
        attention = self.layers[layer]
        attention.impl._impl.do_kv_cache_update(attention, key, value, attention.kv_cache, slot_mapping)

    def to_device(self, array: Ids, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.from_numpy(array).to(device=self._device, dtype=dtype)

    @torch.inference_mode()
    def run(self, parts: Sequence[SlicePart]) -> None:
        """Compute the rows of all parts, in one call of the model, and write their K and V.

        Every position below a row's own must have been staged, computed before, or be in the same slice.
        """
        metadata, slot_mapping = self._metadata(parts)
        ids = self.to_device(np.concatenate([part.token_ids for part in parts]))
        positions = self.to_device(np.concatenate([part.positions for part in parts]))
        with set_forward_context(
            dict.fromkeys(self.layer_names, metadata),
            self._config,
            num_tokens=ids.numel(),
            slot_mapping=dict.fromkeys(self.layer_names, slot_mapping),
            skip_compiled=True,
        ):
            self._model(ids, positions)

    def _metadata(self, parts: Sequence[SlicePart]) -> tuple[Any, torch.Tensor]:
        runs = [positions_to_runs(part.placed) for part in parts]
        lengths = np.concatenate([run[:, 1] - run[:, 0] for run in runs])
        seq_lens = np.concatenate([run[:, 1] for run in runs])
        starts = np.concatenate(([0], np.cumsum(lengths)))
        width = -(-int(seq_lens.max()) // self.block_size)
        tables = np.zeros((len(lengths), width), dtype=np.int64)
        row = 0
        for part, run in zip(parts, runs, strict=True):
            blocks = part.block_ids[:width]
            tables[row : row + len(run), : len(blocks)] = blocks
            row += len(run)
        slot_mapping = self.to_device(
            np.concatenate([slots(part.placed, part.block_ids, self.block_size) for part in parts])
        )
        common = CommonAttentionMetadata(
            query_start_loc=self.to_device(starts, torch.int32),
            query_start_loc_cpu=torch.from_numpy(starts).to(torch.int32),
            seq_lens=self.to_device(seq_lens, torch.int32),
            num_reqs=len(lengths),
            num_actual_tokens=int(starts[-1]),
            max_query_len=int(lengths.max()),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=self.to_device(tables, torch.int32),
            slot_mapping=slot_mapping,
            causal=True,
        )
        return self._builder.build(0, common), slot_mapping


def _layer_number(name: str) -> int:
    return next(int(part) for part in name.split(".") if part.isdigit())
