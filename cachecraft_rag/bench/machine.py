"""What a measurement ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    """Processor, cores and the versions that speed depends on, in plain JSON types."""
    from importlib.metadata import version

    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "avx512": torch.cpu._is_avx512_supported(),
        "amx": torch.cpu._is_amx_tile_supported(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch": version("torch"),
        "python": platform.python_version(),
    }
