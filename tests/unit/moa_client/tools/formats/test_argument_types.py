from __future__ import annotations

from typing import Any

import pytest
from moa_client.tools.formats.argument_types import ANY, json_of, types_of


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (None, ANY),
        ({}, ANY),
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"enum": ["a", 1, 1.5, None, True, [], {}]}, ANY),
        ({"const": "a"}, {"string"}),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        (True, ANY),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    assert types_of(schema, {}) == types


def test_references_are_followed() -> None:
    root = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}}}
    assert types_of({"$ref": "#/$defs/a"}, root) == {"integer"}
    circle = {"$defs": {"tree": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}}
    assert types_of({"$ref": "#/$defs/tree"}, circle) == {"null"}
    for reference in ("#/$defs/loop", "#/$defs/none", "https://example.org/schema", "#/$defs/b/type/x"):
        assert types_of({"$ref": reference}, root) == ANY


def test_numbers_that_python_would_not_read_are_kept() -> None:
    assert json_of("9" * 5000, frozenset({"integer"})) == "9" * 5000
