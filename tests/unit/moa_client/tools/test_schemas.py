from __future__ import annotations

import json
from typing import Any

import pytest
from moa_client.tools.answer_reader import FORMATS
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.grammars import forced_grammar
from moa_client.tools.tool import ANY, MOST_DEPTH, Tool, check_schema, types_of
from moa_shared.errors import ConfigError


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": []}, "In the schema of f, properties is not a JSON object."),
        ({"properties": {"x": {"items": [1]}}}, "The schema of f.x[] is not a JSON object."),
        ({"properties": {"x": {"type": 1}}}, "In the schema of f.x, type is not a name or a list of names."),
        ({"properties": {"x": {"type": [["a"]]}}}, "In the schema of f.x, type is not a name or a list of names."),
        ({"required": None}, "In the schema of f, required is not a list of names."),
        ({"properties": {"x": {"enum": {}}}}, "In the schema of f.x, enum is not a list."),
        ({"properties": {"x": {"anyOf": []}}}, "In the schema of f.x, anyOf is not a list of schemas."),
        ({"$defs": {"x": None}}, "The schema of f.x is not a JSON object."),
        ({"default": json.loads("[" * MOST_DEPTH + "]" * MOST_DEPTH)}, "The schema of f is nested more than 64 deep."),
    ],
)
def test_a_schema_that_is_none(schema: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_schema("f", schema)
    assert caught.value.message == message


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: type(form).__name__)
@pytest.mark.parametrize(
    "schema",
    [
        True,
        False,
        {"type": "file"},
        {"type": []},
        {"type": ["string", "file"]},
        {"enum": []},
        {"anyOf": [True]},
        {"oneOf": [{"type": "string"}, {"$ref": "#/none"}]},
        {"type": "array"},
        {"type": "array", "items": False},
        {"type": "object", "properties": {"y": True}, "required": ["z"]},
        {"const": {"a": [1]}},
        {"type": "string", "enum": [1]},
    ],
)
def test_whatever_passes_is_enforced_or_refused(form: ToolFormat, schema: Any) -> None:
    tool = Tool("f", parameters={"type": "object", "properties": {"x": schema}})
    try:
        outcome = forced_grammar(form, [tool], {})
    except ConfigError as error:
        outcome = error.message
    assert outcome.startswith("start: ") or "cannot be enforced" in outcome


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
        ({"$ref": "#/$defs/a"}, {"integer"}),
        ({"$ref": "#/$defs/tree"}, {"null"}),
        *(({"$ref": to}, ANY) for to in ("#/$defs/loop", "#/$defs/none", "https://a.b/c", "#/$defs/b/type/x")),
    ],
)
def test_types_of_a_schema(schema: Any, types: set[str]) -> None:
    definitions = {
        "a": {"$ref": "#/$defs/b"},
        "b": {"type": "integer"},
        "loop": {"$ref": "#/$defs/loop"},
        "tree": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
    }
    assert types_of(schema, {"$defs": definitions}) == types
