"""What the documents must name, because users look for it there."""

import re
from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from cachecraft_rag.config import EngineConfig
from cachecraft_rag.interface import REQUEST_OPTIONS
from cachecraft_rag.reuse.policies import POLICIES

OPTIONS = (Path(__file__).parents[1] / "docs" / "options.md").read_text()
ROWS = [line.split("|")[1:-1] for line in OPTIONS.splitlines() if line.startswith("| `")]
NAMED: dict[str, list[str]] = {}
for row in ROWS:
    for name in re.findall(r"`(\S+?)(?:=\S+)?`", row[0]):
        NAMED.setdefault(name, row)


@pytest.mark.parametrize("field", fields(EngineConfig), ids=lambda field: field.name)
def test_each_option_is_described_with_its_default(field):
    assert field.name in NAMED
    if isinstance(field.default, bool | float | int):
        assert NAMED[field.name][1].strip(" `") == str(field.default)


def test_no_option_is_described_that_does_not_exist():
    known = {field.name for field in fields(EngineConfig)} | set(POLICIES) | set(REQUEST_OPTIONS)
    assert set(NAMED) == known


def test_mandatory_options_are_those_without_a_default():
    mandatory = [f.name for f in fields(EngineConfig) if f.default is MISSING and f.default_factory is MISSING]
    assert [name for name, row in NAMED.items() if len(row) == 3 and not row[1].strip()] == mandatory
