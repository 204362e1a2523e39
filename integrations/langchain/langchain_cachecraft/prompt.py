"""`ChunkPromptTemplate`: variables that hold documents become chunks of the prompt."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from string import digits
from typing import Any, Self, cast, overload

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate, StringPromptTemplate
from langchain_core.prompts.base import format_document
from langchain_core.prompts.chat import MessageLike
from pydantic import Field

from cachecraft_rag.errors import InvalidInput
from cachecraft_rag.prompt import JOINER
from langchain_cachecraft.documents import DOCUMENT_ID, chunk_of

_LETTERS = "ghjkmnpqrtvwxyz"  # with digits in between: no template escapes them, and neither words nor hex look like it
_WINDOW = 6  # characters of a nonce that betray the remainder of a stand-in


class ChunkPromptTemplate(ChatPromptTemplate):
    """A `ChatPromptTemplate` for variables that hold documents.

    A list of documents (or one) is placed as its documents' texts, with `document_separator` between them, each as a
    text block of its own that carries the id of the chunk. To any other chat model `message.text` is what it would get
    from a template with the joined texts. `document_prompt` may put more around each text, of `page_content` and keys
    of the metadata, as in `create_stuff_documents_chain`; it doesn't become part of the chunk.

    The template sees a stand-in in place of each text: letters and digits, as many as the text has characters, at least
    thirty. A template that cuts or changes it is refused; what leaves it whole places the text as it is, even where
    it would have been escaped (`tojson`, `!r`). What only asks about a text or replaces things in it (`wordcount`,
    `replace`, `in`, `length` of a short one) gets the stand-in, without an error.
    """

    document_prompt: StringPromptTemplate = Field(
        default_factory=lambda: PromptTemplate.from_template("{page_content}")
    )
    document_separator: str = JOINER

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        return ["langchain_cachecraft", "prompt"]

    def format_messages(self, **kwargs: Any) -> list[BaseMessage]:
        slots = _Slots(self.document_prompt, self.document_separator)
        bare, variables = self._place(slots, kwargs)
        return slots.fill(ChatPromptTemplate.format_messages(bare, **variables))

    async def aformat_messages(self, **kwargs: Any) -> list[BaseMessage]:
        slots = _Slots(self.document_prompt, self.document_separator)
        bare, variables = self._place(slots, kwargs)
        return slots.fill(await ChatPromptTemplate.aformat_messages(bare, **variables))

    def _place(self, slots: _Slots, kwargs: Mapping[str, Any]) -> tuple[Self, dict[str, Any]]:
        """This template without partial variables, and all variables with documents replaced."""
        variables = self._merge_partial_and_user_variables(**kwargs)
        of_messages = set(_placeholders(self.messages))
        placed = {name: value if name in of_messages else slots.place(name, value) for name, value in variables.items()}
        return self.model_copy(update={"partial_variables": {}}), placed

    def __add__(self, other: Any) -> ChunkPromptTemplate:
        return self._with(super().__add__(other))

    def __radd__(self, other: Any) -> ChunkPromptTemplate:
        left = other if isinstance(other, ChatPromptTemplate) else ChatPromptTemplate.from_messages([other])
        return self._with(ChatPromptTemplate.__add__(left, self))

    @overload
    def __getitem__(self, index: int) -> MessageLike: ...

    @overload
    def __getitem__(self, index: slice) -> ChatPromptTemplate: ...

    def __getitem__(self, index: int | slice) -> MessageLike | ChatPromptTemplate:
        found = super().__getitem__(index)
        return self._with(found) if isinstance(index, slice) and isinstance(found, ChatPromptTemplate) else found

    def _with(self, template: ChatPromptTemplate) -> ChunkPromptTemplate:
        options = {"document_prompt": self.document_prompt, "document_separator": self.document_separator}
        made = type(self).from_messages(template.messages).model_copy(update=options)
        return cast("ChunkPromptTemplate", made.partial(**template.partial_variables))


class _Slots:
    """Stand-ins for documents in one call: random, so that nothing in a text or a template can be taken for one."""

    def __init__(self, document_prompt: StringPromptTemplate, separator: str) -> None:
        self._document_prompt = document_prompt
        self._separator = separator
        self._nonce = "".join(secrets.choice(_LETTERS) + secrets.choice(digits) for _ in range(12))
        self._placed: dict[str, Document] = {}

    def place(self, name: str, value: Any) -> Any:
        """What stands for the value of a variable in the template."""
        documents = [value] if isinstance(value, Document) else value
        if not isinstance(documents, (list, tuple)) or not any(isinstance(one, Document) for one in documents):
            return "" if isinstance(value, (list, tuple)) and not value else value
        other = next((one for one in documents if not isinstance(one, Document)), None)
        if other is not None:
            raise InvalidInput(
                f"the variable {name!r} holds documents and a {type(other).__name__} ({other!r:.60}): "
                "give only documents"
            )
        return _Placed((self._stand_in(document) for document in documents), self._document_prompt, self._separator)

    def fill(self, messages: Iterable[BaseMessage]) -> list[BaseMessage]:
        return [self._filled(message) for message in messages]

    def _stand_in(self, document: Document) -> Document:
        head = f"{self._nonce}D{len(self._placed)}P"  # small and capital letters: a change of case shows
        fill = islice(cycle(self._nonce), max(0, len(document.page_content) - len(head) - 1))  # what cuts a text, cuts
        text = f"{head}{''.join(fill)}Q"
        self._placed[text] = document
        return Document(id=document.id, page_content=text, metadata=document.metadata)

    def _filled(self, message: BaseMessage) -> BaseMessage:
        content = message.content
        if not self._shows_in(_spelled(content)):
            return message
        blocks = [content] if isinstance(content, str) else content
        return message.model_copy(update={"content": [made for block in blocks for made in self._blocks(block)]})

    def _blocks(self, block: str | dict[Any, Any]) -> Iterator[dict[str, Any]]:
        around = {"type": "text"} if isinstance(block, str) else block
        text = block if isinstance(block, str) else block.get("text")
        others = {name: value for name, value in around.items() if name != "text"}
        pieces = re.split(rf"({self._nonce}D[0-9]+P[0-9a-z]*Q)", text) if isinstance(text, str) else []
        changed = any(piece not in self._placed for piece in pieces[1::2])
        if changed or any(self._shows_in(piece) for piece in [*pieces[::2], _spelled(others)]):
            raise InvalidInput(
                "the template cuts, changes or puts elsewhere than into text the text of a document: place the "
                "variable with the documents as it is, like {context}"
            )
        if not pieces:
            yield around
        for number, piece in enumerate(pieces):
            if number % 2:
                yield {**others, **_chunk_block(self._placed[piece])}
            elif piece:
                yield {**others, "text": piece}

    def _shows_in(self, text: str) -> bool:
        lowered = text.lower()
        windows = range(len(self._nonce) - _WINDOW + 1)
        return any(self._nonce[start : start + _WINDOW] in lowered for start in windows)


class _Placed(list[Document]):
    """Documents that a template may print as one text or, where it can (jinja2, mustache), walk through."""

    def __init__(self, documents: Iterable[Document], prompt: StringPromptTemplate, separator: str) -> None:
        super().__init__(documents)
        self._text = separator.join(format_document(document, prompt) for document in self)

    def __str__(self) -> str:
        return self._text

    def __format__(self, spec: str) -> str:
        return format(self._text, spec)


def _chunk_block(document: Document) -> dict[str, Any]:
    """A text block with the chunk's id; white space alone is no chunk."""
    block: dict[str, Any] = {"type": "text", "text": document.page_content}
    if not document.page_content.strip():
        return block
    chunk = chunk_of(document)
    block["id"] = chunk.id
    if chunk.document_id is not None:
        block["extras"] = {DOCUMENT_ID: chunk.document_id}
    return block


def _spelled(content: Any) -> str:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)


def _placeholders(messages: Sequence[MessageLike]) -> Iterator[str]:
    """Variables that hold messages."""
    for message in messages:
        if isinstance(message, MessagesPlaceholder):
            yield message.variable_name
        elif isinstance(message, ChatPromptTemplate):
            yield from _placeholders(message.messages)
