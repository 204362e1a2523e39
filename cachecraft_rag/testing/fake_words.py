"""How the fake engine reads a prompt and makes up an answer, the same each time."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cachecraft_rag.prompt import ChunkPrompt, Text
from cachecraft_rag.tools import OPEN

_WORDS = re.compile(r"\s*\S+|\s+$")
_NUMBERS = re.compile(r"-?\d+(?:\.\d+)?")
_QUOTED = re.compile(r"(?<!\w)'([^'\n]+)'(?!\w)")


def words(text: str) -> list[str]:
    """The fake's tokens: words with the white space before them; they spell `text` exactly."""
    return _WORDS.findall(text)


def answer_to(prompt: ChunkPrompt, structured: Mapping[str, Any] | None) -> str:
    """What the fake says when the test gave it no answer: it repeats the last text it was sent."""
    last = "".join(part.text for part in prompt.messages[-1].parts if isinstance(part, Text)).strip()
    if structured and structured.get("json") is not None:
        schema = structured["json"]
        return json.dumps(instance(json.loads(schema) if isinstance(schema, str) else schema, last))
    if structured and structured.get("structural_tag") is not None:
        call = _call(json.loads(structured["structural_tag"])["format"], last)
        if call:
            return call
    return f"You said: {last}" if last else "You said nothing."


def instance(schema: Mapping[str, Any], hint: str) -> Any:
    """The smallest value of a JSON schema; numbers and 'quoted' strings are those of `hint`, in order."""
    return _Instances(schema, hint).of(schema, "value")


def _call(layout: Mapping[str, Any], last: str) -> str:
    """A call of the first tool that is named in the question, where one must be or hasn't been answered yet."""
    if not layout["at_least_one"] and last.startswith("<tool_response>"):
        return ""
    tags = layout["tags"]
    named = [tag for tag in tags if json.loads(_name(tag["begin"])) in last]
    tag = (named or tags)[0]
    arguments = json.dumps(instance(tag["content"]["json_schema"], last), ensure_ascii=False)
    assert tag["begin"].startswith(OPEN)
    return f"{tag['begin']}{arguments}{tag['end']}"


def _name(begin: str) -> str:
    return begin.split('"name": ', 1)[1].rsplit(', "arguments"', 1)[0]


class _Instances:
    def __init__(self, root: Mapping[str, Any], hint: str) -> None:
        self._root = root
        self._numbers = [float(number) for number in _NUMBERS.findall(hint)]
        self._strings: list[str] = _QUOTED.findall(hint)

    def of(self, schema: Mapping[str, Any], name: str) -> Any:
        if "$ref" in schema:
            target: Any = self._root
            for step in schema["$ref"].removeprefix("#/").split("/"):
                target = target[step]
            return self.of(target, name)
        for several in ("anyOf", "oneOf", "allOf"):
            if several in schema:
                return self.of(schema[several][0], name)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][0]
        kind = schema.get("type", "object" if "properties" in schema else "string")
        return getattr(self, f"_{kind[0] if isinstance(kind, list) else kind}")(schema, name)

    def _object(self, schema: Mapping[str, Any], _: str) -> dict[str, Any]:
        wanted = schema.get("required", list(schema.get("properties", {})))
        return {key: self.of(value, key) for key, value in schema.get("properties", {}).items() if key in wanted}

    def _array(self, schema: Mapping[str, Any], name: str) -> list[Any]:
        return [self.of(schema.get("items", {"type": "string"}), name)] * schema.get("minItems", 1)

    def _integer(self, schema: Mapping[str, Any], name: str) -> int:
        return int(self._number(schema, name))

    def _number(self, schema: Mapping[str, Any], _: str) -> float:
        return self._numbers.pop(0) if self._numbers else float(schema.get("minimum", 1))

    def _string(self, _: Mapping[str, Any], name: str) -> str:
        return self._strings.pop(0) if self._strings else f"some {name}"

    def _boolean(self, *_: Any) -> bool:
        return True

    def _null(self, *_: Any) -> None:
        return None
