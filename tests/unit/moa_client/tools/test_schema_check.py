from __future__ import annotations

import json
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_client.tools.forced import forced_grammar
from moa_client.tools.formats.base import ToolFormat
from moa_client.tools.formats.families import FORMATS
from moa_client.tools.schema_check import MOST_DEPTH, check_schema
from moa_client.tools.tool import Tool
from moa_shared.errors import ConfigError

from tests.support.messages import raises


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"properties": []},
            snapshot("In the schema of f, properties is not a JSON object. Correct the tool's JSON schema."),
        ),
        (
            {"properties": {"x": {"items": [1]}}},
            snapshot("The schema of f.x[] is not a JSON object. Correct the tool's JSON schema."),
        ),
        (
            {"properties": {"x": {"type": 1}}},
            snapshot("In the schema of f.x, type is not a name or a list of names. Correct the tool's JSON schema."),
        ),
        (
            {"properties": {"x": {"type": [["string"]]}}},
            snapshot("In the schema of f.x, type is not a name or a list of names. Correct the tool's JSON schema."),
        ),
        (
            {"required": None},
            snapshot("In the schema of f, required is not a list of names. Correct the tool's JSON schema."),
        ),
        (
            {"properties": {"x": {"enum": {}}}},
            snapshot("In the schema of f.x, enum is not a list. Correct the tool's JSON schema."),
        ),
        (
            {"properties": {"x": {"anyOf": []}}},
            snapshot("In the schema of f.x, anyOf is not a list of schemas. Correct the tool's JSON schema."),
        ),
        ({"$defs": {"x": None}}, snapshot("The schema of f.x is not a JSON object. Correct the tool's JSON schema.")),
        (
            {"default": json.loads("[" * MOST_DEPTH + "]" * MOST_DEPTH)},
            snapshot("The schema of f is nested more than 64 deep. Flatten it."),
        ),
    ],
)
def test_a_schema_that_is_none(schema: dict[str, Any], message: str) -> None:
    with raises(ConfigError, message):
        check_schema("f", schema)


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
