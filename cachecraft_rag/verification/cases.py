"""The prompts of the proof: what differs between them is what has broken others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from cachecraft_rag.chunk import Chunk
from cachecraft_rag.prompt import ChunkPrompt

_NAMES = ("Aster", "Bram", "Cleo", "Dorian", "Edda", "Falk", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Levin")
_THINGS = ("a copper kettle", "two blue lamps", "an old violin", "seven maps", "a glass boat", "a brass compass")
_PLACES = ("the harbour", "a mill by the river", "the third floor", "a village in the north", "the old station")
_DEEDS = ("repairs clocks", "teaches geometry", "grows pears", "writes about the sea", "paints doors", "keeps bees")


@dataclass(frozen=True, slots=True)
class Case:
    """`prompts` are sent at once, `repeats` times in a row; `prewarm` and `before` come first, uncounted.

    `beside`: plain requests that run at the same time. `cuts_chunk`: the last request must find a part of vLLM's
    prefix cache that ends inside a chunk, or the case proves nothing.
    """

    name: str
    prompts: tuple[ChunkPrompt, ...]
    prewarm: tuple[Chunk, ...] = ()
    before: tuple[ChunkPrompt, ...] = ()
    beside: tuple[ChunkPrompt, ...] = ()
    repeats: int = 1
    cuts_chunk: bool = False
    expects: dict[str, int] = field(default_factory=dict)


def passage(seed: int, sentences: int) -> Chunk:
    """A short story of facts, the same for the same seed."""
    rng = random.Random(seed)
    lines = []
    for number in range(sentences):
        name, thing, place, deed = (rng.choice(words) for words in (_NAMES, _THINGS, _PLACES, _DEEDS))
        lines.append(f"{name} lives at {place}, {deed} and owns {thing} bought in {1900 + rng.randrange(99)}.")
        if number % 4 == 3:
            lines.append(f"Room {rng.randrange(900)} is empty; its key hangs behind the door of {rng.choice(_NAMES)}.")
    return Chunk(" ".join(lines))


def make_cases(scale: int = 1) -> list[Case]:
    """The cases, with passages `scale` times as long. At 1 the prompts have roughly 100 to 500 tokens."""
    chunks = [passage(seed, scale * (2 + seed % 4)) for seed in range(12)]
    fresh = [passage(100 + seed, scale * (2 + seed % 3)) for seed in range(8)]

    def ask(order: Sequence[Chunk], question: str) -> ChunkPrompt:
        return ChunkPrompt.chat(order, question)

    a, b, c, d, e, f, *_ = chunks
    what, who = "What does Cleo own?", "Who keeps bees, and where?"
    text_between = ChunkPrompt.from_messages(
        [
            {"role": "system", "content": "Answer in one sentence."},
            {"role": "user", "content": ["[1] ", a, "[2] ", b, "[3] ", f, what]},
        ]
    )
    return [
        Case("one missed chunk", (ask(fresh[:1], what),)),
        Case("four missed chunks", (ask(fresh[1:5], who),)),
        Case("hits in the order they were stored", (ask([a, b, c], what),), prewarm=tuple(chunks), expects={"hits": 3}),
        Case("hits in another order", (ask([c, a, d, b], what),), expects={"hits": 4}),
        Case("many hits reversed", (ask([f, e, d, c, b, a], who),), expects={"hits": 6}),
        Case("the same prompt four times", (ask([b, f, a], who),), repeats=4),
        Case("hit, miss, hit", (ask([e, fresh[5], c], what),), expects={"hits": 2, "misses": 1}),
        Case("a new first chunk", (ask([fresh[6], a, b], who),), expects={"hits": 2, "misses": 1}),
        Case("the question before the chunks", (ChunkPrompt.chat([d, a], what, question_first=True),)),
        Case("text between chunks, another system text", (text_between,)),
        Case("ends in a chunk, no template", (ChunkPrompt.from_parts(["Facts:\n", b, e]),)),
        Case(
            "a prefix-cache hit that ends inside a chunk",
            (ask([chunks[8], chunks[9], a], what),),
            before=(ask([chunks[8], chunks[9], f], what),),
            cuts_chunk=True,
        ),
        Case(
            "four at once beside plain ones",
            tuple(ask(order, who) for order in ([a, c], [c, a, e], [f, fresh[7], b], [d, b, a])),
            beside=(ask([b, a], what), ask([e, f], who)),
        ),
    ]
