"""Token ids of single pieces of text, with and without trust in the special tokens that are spelled in them."""

from __future__ import annotations

import hashlib
import json
import re
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

from cachecraft_rag.errors import InvalidInput

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_WITHOUT_EFFECT_ON_PIECES = ("truncation", "padding", "post_processor", "decoder")


class TextCodec:
    """Encodes pieces of a prompt with private copies of a fast tokenizer, so that no other user's settings matter.

    Nothing is changed after construction: any number of threads may encode at once. No piece gets special tokens added.

    A piece that does not open the prompt continues what stands before it. So it is encoded without the blank that some
    tokenizers put in front of a text, as it would be in the middle of a flat prompt.
    """

    def __init__(self, backend: Tokenizer) -> None:
        serialised = backend.to_str()
        spec = json.loads(serialised)
        continuing = _without_dummy_prefix(spec)
        self._trusted = _copy(serialised, literal=False)
        self._opening = _copy(serialised, literal=True)
        self._has_dummy_prefix = continuing != spec
        self._continuing = _copy(json.dumps(continuing), literal=True) if self._has_dummy_prefix else self._opening
        self._added = {id_: token.content for id_, token in backend.get_added_tokens_decoder().items()}
        self._guarded = {
            id_: token.content
            for id_, token in backend.get_added_tokens_decoder().items()
            if not _is_ordinary_text(token.content, token.special)
        }
        self._unknown_id = _unknown_id(spec["model"], backend)
        probe = self._trusted.encode("a", add_special_tokens=True)
        marked = zip(probe.ids, probe.special_tokens_mask, strict=True)
        self.prefix: tuple[int, ...] = tuple(id_ for id_, _ in takewhile(lambda pair: pair[1] == 1, marked))
        """The ids, in practice BOS or none, that the tokenizer itself puts in front of a text."""

    def encode(self, text: str, *, trusted: bool = False, opening: bool = False) -> tuple[int, ...]:
        """The ids of one piece; `opening` if it is the first of the prompt.

        Untrusted text never yields an added token, special or not, whatever it spells; those that are ordinary text
        (runs of blanks, say) don't count. Raises `InvalidInput` if that can't be had.
        """
        if trusted:
            return tuple(self._encode_trusted(text, opening))
        return tuple(self._encode_plain(self._opening if opening else self._continuing, text))

    def fingerprint(self) -> str:
        """sha256 (hex) of all in the tokenizer that has a say in the ids of a piece."""
        spec = json.loads(self._opening.to_str())
        kept = {key: value for key, value in spec.items() if key not in _WITHOUT_EFFECT_ON_PIECES}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def _encode_trusted(self, text: str, opening: bool) -> list[int]:
        encoding = self._trusted.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if opening or not self._has_dummy_prefix:
            return ids
        # Only what stands before the first added token continues the text before; the rest is as it would be anyway.
        first = next((index for index, id_ in enumerate(ids) if id_ in self._added), len(ids))
        lead = text[: encoding.offsets[first][0]] if first < len(ids) else text
        return (self._encode_plain(self._continuing, lead) if lead else []) + ids[first:]

    def _encode_plain(self, tokenizer: Tokenizer, text: str) -> list[int]:
        encoding = tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if self._guarded.keys().isdisjoint(ids):
            return ids
        cuts = {
            self._cut(text, id_, *span)
            for id_, span in zip(ids, encoding.offsets, strict=True)
            if self._is_markup(id_, text[slice(*span)])
        }
        if not cuts:
            return ids
        if not all(0 < cut < len(text) for cut in cuts):
            raise InvalidInput(
                f"the text {text!r:.80} can't be written without the added token of that name; take it out of the text"
            )
        pieces = [text[start:stop] for start, stop in pairwise([0, *sorted(cuts), len(text)])]
        head = self._encode_plain(tokenizer, pieces[0])
        return head + [id_ for piece in pieces[1:] for id_ in self._encode_plain(self._continuing, piece)]

    def _is_markup(self, id_: int, covered: str) -> bool:
        """Whether this id is an added token, and not the unknown token standing for a text that is not its name."""
        return id_ in self._guarded and (id_ != self._unknown_id or self._guarded[id_] in covered)

    def _cut(self, text: str, id_: int, start: int, stop: int) -> int:
        """The position after the first character of the added token's name within `text[start:stop]`."""
        found = text.find(self._guarded[id_], start, stop)
        if found < 0:  # spelled otherwise, and made the name by the tokenizer's normalizer
            found = stop - len(text[start:stop].lstrip())
        return found + 1


def _copy(serialised: str, *, literal: bool) -> Tokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(serialised)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = literal
    return tokenizer


def _is_ordinary_text(content: str, special: bool) -> bool:
    """Whether an added token carries no markup: white space, a byte, or one character added to the vocabulary."""
    if not content.replace("▁", " ").strip() or _BYTE_TOKEN.fullmatch(content):
        return True
    return len(content) == 1 and not special


def _unknown_id(model: dict[str, Any], backend: Tokenizer) -> int | None:
    if isinstance(model.get("unk_id"), int):  # Unigram
        return int(model["unk_id"])
    name = model.get("unk_token")
    return backend.token_to_id(name) if isinstance(name, str) else None


def _without_dummy_prefix(spec: dict[str, Any]) -> dict[str, Any]:
    """The tokenizer's JSON, changed so that no blank is put in front of a text."""
    normalizer, pre_tokenizer = _continue(spec["normalizer"]), _continue(spec["pre_tokenizer"])
    return {**spec, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}


def _continue(node: dict[str, Any] | None) -> dict[str, Any] | None:
    if node is None or node["type"] == "Prepend":
        return None
    if node["type"] == "Sequence":
        key = "normalizers" if "normalizers" in node else "pretokenizers"
        return {**node, key: [kept for child in node[key] if (kept := _continue(child)) is not None]}
    if node["type"] == "Metaspace":
        return {**node, "prepend_scheme": "never"}
    if node["type"] == "ByteLevel":  # as a pre-tokenizer; as a normalizer it has no such field
        return {**node, "add_prefix_space": False} if "add_prefix_space" in node else node
    return node
