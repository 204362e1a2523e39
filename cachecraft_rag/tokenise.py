"""Prompts to token ids and segments. From here on the ids are the truth: nothing is decoded and encoded again."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from cachecraft_rag.chunk import Chunk, check_text
from cachecraft_rag.codec import TextCodec
from cachecraft_rag.errors import InvalidInput, UnsupportedModel
from cachecraft_rag.prompt import JOINER, ChunkPrompt, Part, Text, spell_out
from cachecraft_rag.template import ChatTemplate

if TYPE_CHECKING:
    from cachecraft_rag.config import EngineConfig

_CACHED_TOKENS = 1 << 20  # of chunks, about 40 MB


@dataclass(frozen=True, slots=True)
class Segment:
    """The positions `start` to `stop` (exclusive, never empty) of one chunk, or of the text between two chunks."""

    kind: Literal["text", "chunk"]
    start: int
    stop: int
    chunk_id: str | None = None
    digest: str | None = None
    document_id: str | None = None


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """The ids of a whole prompt and its segments, which cover all positions in order and without gaps."""

    token_ids: tuple[int, ...]
    segments: tuple[Segment, ...]

    @property
    def chunks(self) -> tuple[Segment, ...]:
        """The chunks' segments, in order."""
        return tuple(segment for segment in self.segments if segment.kind == "chunk")


class PromptTokenizer:
    """Turns prompts into token ids, each part on its own: a chunk's ids never depend on what stands around it.

    Any number of threads may use one at the same time, and the tokenizer it was made from may be used meanwhile.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        default_system: str | None = None,
        joiner: str = JOINER,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """`tokenizer` is a fast tokenizer of transformers; see `from_pretrained` for the rest."""
        from tokenizers import Tokenizer

        backend = getattr(tokenizer, "backend_tokenizer", None)
        if not isinstance(backend, Tokenizer):
            raise UnsupportedModel(
                f"{type(tokenizer).__name__} is not a fast tokenizer of transformers; give a model with a "
                "tokenizer.json, or convert its tokenizer to one"
            )
        if default_system is not None:
            check_text(default_system, "default_system")
        self.joiner = check_text(joiner, "joiner")
        self._codec = TextCodec(backend)
        self._template = ChatTemplate(tokenizer, default_system, chat_template_kwargs or {})
        self._cache = _ChunkCache(_CACHED_TOKENS)
        self._head: tuple[int, ...] | None = None
        self._fingerprint: str | None = None

    @classmethod
    def of_engine(cls, config: EngineConfig) -> PromptTokenizer:
        """The one that an engine of that configuration encodes prompts with."""
        return cls.from_pretrained(
            config.model, default_system=config.default_system, chat_template_kwargs=config.chat_template_kwargs
        )

    @classmethod
    def from_pretrained(
        cls,
        path_or_tokenizer: Any,
        *,
        default_system: str | None = None,
        joiner: str = JOINER,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> PromptTokenizer:
        """Make one from a model's folder or hub name, or from a fast tokenizer of transformers.

        `default_system` is the system text of chats that give none; None leaves it to the template's own default.
        `chat_template_kwargs` go to the template at each call: `{"enable_thinking": False}`, for example, or a fixed
        `date_string` for a template that would write today's date into the head of each prompt.
        """
        if isinstance(path_or_tokenizer, (str, os.PathLike)):
            from transformers import AutoTokenizer

            try:
                tokenizer = AutoTokenizer.from_pretrained(path_or_tokenizer)
            except (OSError, ValueError) as error:
                raise InvalidInput(
                    f"no tokenizer could be loaded from {str(path_or_tokenizer)!r}: {error}; give a model's folder or "
                    "hub name"
                ) from error
        else:
            tokenizer = path_or_tokenizer
        return cls(tokenizer, default_system=default_system, joiner=joiner, chat_template_kwargs=chat_template_kwargs)

    @property
    def head_token_ids(self) -> tuple[int, ...]:
        """The canonical head: all ids before the user's first content in a chat with the default system text.

        Without a chat template: BOS, if the tokenizer adds one. Rendered once and kept. Raises `InvalidInput` if the
        template refuses `default_system`.
        """
        if self._head is None:
            self._head = self._assemble(self._template.render_head() if self._template.exists else []).token_ids
        return self._head

    def encode(self, prompt: ChunkPrompt) -> EncodedPrompt:
        """The ids of a prompt and where its chunks lie. Text keeps its own outer white space.

        A prompt begins with BOS exactly once if the template writes it or the tokenizer adds it.
        Raises `InvalidInput` for a prompt or a chunk without any token, and what `ChatTemplate.render` raises.
        """
        encoded = self._assemble(self._template.render(prompt.messages) if prompt.is_chat else prompt.parts)
        if not encoded.token_ids:
            raise InvalidInput("the prompt has no tokens; give at least one chunk or some text")
        return encoded

    def encode_chunk(self, chunk: str | Chunk) -> tuple[int, ...]:
        """The ids of a chunk with its joiner, the same wherever it stands. They are kept for the next time."""
        chunk = Chunk.of(chunk)
        token_ids = self._cache.get(chunk.digest)
        if token_ids is None:
            token_ids = self._codec.encode(chunk.text + self.joiner)
            if not token_ids:
                raise InvalidInput(f"the chunk {chunk.text!r:.80} has no tokens with this tokenizer; leave it out")
            self._cache.put(chunk.digest, token_ids)
        return token_ids

    def count(self, text: str) -> int:
        """The number of tokens of untrusted text on its own, without joiner and BOS."""
        return len(self._codec.encode(check_text(text, "text")))

    def fingerprint(self) -> str:
        """sha256 (hex) of all that has a say in a chunk's ids: equal fingerprints, equal ids."""
        if self._fingerprint is None:
            content = f"tk1\0{self._codec.fingerprint()}\0{self.joiner}"
            self._fingerprint = hashlib.sha256(content.encode()).hexdigest()
        return self._fingerprint

    def _assemble(self, parts: Iterable[Part]) -> EncodedPrompt:
        pieces: list[tuple[Part, tuple[int, ...]]] = []
        for part, text in spell_out(parts, self.joiner):
            if isinstance(part, Chunk):
                pieces.append((part, self.encode_chunk(part)))
            elif text:
                pieces.append((part, self._codec.encode(text, trusted=part.trusted, opening=not pieces)))
        prefix = self._codec.prefix
        if pieces and _is_template(pieces[0][0]) and pieces[0][1][: len(prefix)] == prefix:
            prefix = ()
        token_ids = list(prefix)
        segments: list[Segment] = []
        text_start = 0
        for part, piece in pieces:
            start = len(token_ids)
            token_ids += piece
            if isinstance(part, Chunk):
                if start > text_start:
                    segments.append(Segment("text", text_start, start))
                text_start = len(token_ids)
                segments.append(Segment("chunk", start, text_start, part.id, part.digest, part.document_id))
        if len(token_ids) > text_start:
            segments.append(Segment("text", text_start, len(token_ids)))
        return EncodedPrompt(tuple(token_ids), tuple(segments))


def _is_template(part: Part) -> bool:
    return isinstance(part, Text) and part.trusted


class _ChunkCache:
    """Ids of the chunks used last, by digest, up to a number of tokens."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._size = 0
        self._entries: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> tuple[int, ...] | None:
        with self._lock:
            token_ids = self._entries.get(digest)
            if token_ids is not None:
                self._entries.move_to_end(digest)
            return token_ids

    def put(self, digest: str, token_ids: tuple[int, ...]) -> None:
        with self._lock:
            self._size += len(token_ids) - len(self._entries.pop(digest, ()))
            self._entries[digest] = token_ids
            while self._size > self._capacity:
                self._size -= len(self._entries.popitem(last=False)[1])
