"""JSON that must be what a dataclass declares, and what is wrong with it in one line."""

from __future__ import annotations

from pydantic import ConfigDict, ValidationError, with_config

# No field more or less, no number as text, none that is not finite.
strict = with_config(ConfigDict(strict=True, allow_inf_nan=False, extra="forbid"))


def reason(error: ValueError) -> str:
    """Such as "variants.2.kl.value: input should be a valid number, got 'x'": the first field that is wrong."""
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    said = first["msg"][:1].lower() + first["msg"][1:]
    got = "" if first["type"] in ("missing", "json_invalid") else f", got {first['input']!r:.40}"
    return f"{where}: {said}{got}" if where else f"{said}{got}"
