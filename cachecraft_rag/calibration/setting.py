"""The choice that was made for one model, in a small file beside its caches."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cachecraft_rag.config import DEFAULT_POLICY, EngineConfig, default_recompute_ratio
from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse import get_policy
from cachecraft_rag.store.directory import StoreDirectory

FILE = "calibration.json"
_FORMAT = 1
_MOST_BYTES = 1 << 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Calibration:
    """`agreement`: what was measured with this policy and ratio on `samples`, where `target` was asked for."""

    policy: str
    recompute_ratio: float
    target: float
    agreement: float
    samples: int


def save_calibration(directory: StoreDirectory, model: str, calibration: Calibration) -> Path:
    """Write it for the model of that fingerprint, whole or not at all. Raises OSError where the disk does."""
    path = directory.add_model(model, None) / FILE
    content = json.dumps({"format": _FORMAT, "model": model, **asdict(calibration)}, indent=2).encode() + b"\n"
    with directory.writing(path, len(content)) as unfinished:
        unfinished.file.write(content)
    return path


def load_calibration(folder: Path) -> Calibration | None:
    """Of the model whose caches are in `folder`. One that cannot be used is a warning, and None."""
    path = folder / FILE
    try:
        with path.open("rb") as file:
            return _parse(json.loads(file.read(_MOST_BYTES)), folder.name)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidInput) as error:
        logger.warning("%s is passed over (%s): run cachecraft calibrate again, or remove it", path, error)
        return None


def reuse_defaults(config: EngineConfig, folder: Path | None) -> tuple[str, float]:
    """Policy and ratio of requests that name none: the caller's; else, where it named neither, the calibrated ones.

    `folder`: the caches of the model, None where there are none.
    """
    if folder is not None and config.policy is None and config.recompute_ratio is None:
        found = load_calibration(folder)
        if found is not None:
            logger.info(
                "policy %s at ratio %g, as calibrated: %.1f%% of full prefill's tokens on %d samples, %.1f%% wanted",
                *(found.policy, found.recompute_ratio, 100 * found.agreement, found.samples, 100 * found.target),
            )
            return found.policy, found.recompute_ratio
    ratio = config.recompute_ratio
    return config.policy or DEFAULT_POLICY, default_recompute_ratio() if ratio is None else ratio


def _parse(fields: Any, model: str) -> Calibration:
    if not isinstance(fields, dict) or fields.pop("format", None) != _FORMAT:
        raise ValueError(f"it is not a calibration of format {_FORMAT}")
    if fields.pop("model") != model:
        raise ValueError("it is another model's")
    found = Calibration(**fields)
    get_policy(found.policy)
    numbers = (found.recompute_ratio, found.target, found.agreement)
    if not all(isinstance(number, int | float) and 0.0 <= number <= 1.0 for number in numbers):
        raise ValueError(f"ratio, target and agreement {numbers} must lie between 0 and 1")
    if not isinstance(found.samples, int):
        raise ValueError(f"samples={found.samples!r} is not a count")
    return found
