"""The rotary module of each attention layer of a loaded model."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cachecraft_rag.errors import UnsupportedModel
from cachecraft_rag.kernels import RotarySpec, UnsupportedRotary


def rotary_specs(model: torch.nn.Module, layer_names: Sequence[str]) -> list[RotarySpec | None]:
    """One spec per layer, None for a layer that has none; vLLM keeps the module beside each attention as `rotary_emb`.

    Raises UnsupportedModel where a layer's way to encode positions is not known or not proven.
    """
    specs: list[RotarySpec | None] = []
    known: dict[int, RotarySpec] = {}
    for name in layer_names:
        parent = model.get_submodule(name.rpartition(".")[0])
        if not hasattr(parent, "rotary_emb"):
            raise UnsupportedModel(
                f"attention layer {name} has no rotary_emb beside it, so how it encodes positions is not known; "
                "use a Llama or Qwen2 model"
            )
        rotary = parent.rotary_emb
        if rotary is None:
            specs.append(None)
            continue
        if id(rotary) not in known:
            try:
                known[id(rotary)] = RotarySpec.from_module(rotary)
            except UnsupportedRotary as error:
                raise UnsupportedModel(f"the model's rotary embedding cannot be re-rotated: {error}") from error
        specs.append(known[id(rotary)])
    return specs
