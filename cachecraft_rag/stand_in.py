"""Passages that stand in for the neighbours a chunk will have, while its KV is computed and stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LARGEST_SHARE = 4  # one part in so many of the model's context, at most
ROOMY_CONTEXT = 2048  # tokens; all of `STAND_IN` fits into its share of it

_TEXT = """
The water of the sea rises and falls twice a day along most coasts. The pull of the moon raises a bulge of water
on the side of the earth that faces it and another on the far side, and the turning earth carries each coast
through both. When sun and moon pull along one line, at new and full moon, the range between high and low water
is largest; when they pull at right angles it is smallest. The shape of a bay decides the rest: in a narrow,
shallow inlet the same wave may rise by more than ten metres.

The library was founded in 1871 with a gift of four hundred books and moved to its present building on Market
Street in 1904. It has three floors: newspapers and maps on the first, fiction on the second, and a reading room
with a glass roof on the third. Since 1998 it has been run by the county. Members may borrow up to twelve items
for four weeks; about 300,000 visits are counted every year. Its director, Anna Keller, announced in March that
the opening hours will be extended to nine o'clock.

Bread is made of flour, water, salt and something that makes the dough rise, most often yeast. Kneading lines up
the proteins of the flour into an elastic net which holds the gas that the yeast gives off. A first rise of one
or two hours is followed by shaping, a second and shorter rise, and baking at about 230 degrees. In the oven the
outer layer dries and browns, while the inside stays moist. Rye has little of that protein, so its doughs are
made sour to hold together.
"""

# What they say does not matter, that something comes first does (docs/decisions/0009-stand-in.md). A change of one
# letter makes all that is stored useless.
STAND_IN = tuple(" ".join(passage.split()) for passage in _TEXT.split("\n\n"))


class EncodesChunks(Protocol):
    """What turns a chunk's text into token ids."""

    def encode_chunk(self, chunk: str) -> tuple[int, ...]: ...


def stand_in_token_ids(passages: Sequence[str], tokenizer: EncodesChunks, max_model_len: int | None) -> tuple[int, ...]:
    """The ids of the passages as chunks that follow each other, as many of them as fit into a quarter of the context.

    `max_model_len`: tokens of the context, None where nothing limits it.
    """
    token_ids: list[int] = []
    for passage in passages:
        piece = tokenizer.encode_chunk(passage)
        if max_model_len is not None and LARGEST_SHARE * (len(token_ids) + len(piece)) > max_model_len:
            break
        token_ids += piece
    return tuple(token_ids)
