"""The ways to answer that are compared."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.reuse import get_policy
from cachecraft_rag.reuse.policies import recomputes_all

_ANY = 1000  # tokens, to see what a policy makes of a ratio


@dataclass(frozen=True, slots=True)
class Variant:
    """A policy at a ratio, or with `ratio` None one of the ways without a policy below."""

    name: str
    ratio: float | None = None

    def __str__(self) -> str:
        return self.name if self.ratio is None else f"{self.name} {ratio_text(self.ratio)}"


FULL = Variant("full prefill")
NO_CONTEXT = Variant("no context")
EXACT_PREFIX = Variant("exact prefix")
NAIVE = Variant("none", 0.0)
PLAIN = (FULL, NO_CONTEXT, EXACT_PREFIX)  # those that reuse nothing stored
RIVALS = (NO_CONTEXT, EXACT_PREFIX, NAIVE)


def ratio_text(ratio: float) -> str:
    """Of two ratios never the same."""
    text = f"{ratio:g}"  # what records of ordinary ratios are found by
    return text if float(text) == ratio else str(ratio)


def check_ratios(ratios: Iterable[float]) -> list[float]:
    """The ratios, or `InvalidInput` for one that is no share."""
    wanted = list(ratios)
    for ratio in wanted:
        if not 0.0 <= ratio <= 1.0:
            raise InvalidInput(f"ratio {ratio!r} is not a share: give numbers from 0 (reuse all) to 1 (recompute all)")
    return wanted


def make_variants(policies: Iterable[str], ratios: Iterable[float]) -> list[Variant]:
    """The rivals and each policy at each ratio, without repetitions: `none` and `all` are the same at every ratio."""
    wanted = check_ratios(ratios)
    named = [_named(policy, ratio) for policy in policies for ratio in wanted]
    return list(dict.fromkeys([*RIVALS, *named]))


def _named(policy: str, ratio: float) -> Variant:
    known = get_policy(policy)
    if recomputes_all(known.name, ratio):
        return Variant("all", 1.0)
    return Variant(known.name, ratio) if known.budget(_ANY, ratio) > 0 else NAIVE
