"""The rival that reuses only exact prefixes: chunks are reordered to begin as an earlier prompt began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reordered:
    """`order`: the same chunks; `shared`: how many of the first it has in common with the earlier prompt `donor`."""

    order: tuple[str, ...]
    donor: int | None
    shared: int


def reorder_to_prefixes(orders: Sequence[Sequence[str]]) -> list[Reordered]:
    """Each prompt's chunk ids, reordered in the order in which prompts arrive.

    The longest beginning of an earlier, reordered prompt that uses only this prompt's chunks comes first, the rest
    stays in its order. Nothing is ever forgotten, which is more than a cache of limited size could do.
    """
    done: list[Reordered] = []
    for order in orders:
        available = set(order)
        donor, shared = None, 0
        for number, earlier in enumerate(done):
            length = _beginning(earlier.order, available)
            if length > shared:
                donor, shared = number, length
        first = done[donor].order[:shared] if donor is not None else ()
        rest = [chunk for chunk in order if chunk not in first]
        done.append(Reordered((*first, *rest), donor, shared))
    return done


def _beginning(order: Sequence[str], available: set[str]) -> int:
    length = 0
    while length < len(order) and order[length] in available:
        length += 1
    return length
