"""Constraints that cannot be enforced are refused, with the keyword or the library's reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_shared.constraints.grammar import compile_grammar
from moa_shared.errors import ConfigError
from moa_shared.sampling.constraint import Constraint, ConstraintKind

from tests.support.byte_vocabulary import byte_vocabulary
from tests.support.messages import raises


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (
            {"not": {"type": "string"}},
            snapshot("The JSON schema uses not, which cannot be enforced. Leave it out, and check it yourself."),
        ),
        (
            {"if": {}, "then": {}, "type": "object"},
            snapshot("The JSON schema uses if, then, which cannot be enforced. Leave it out, and check it yourself."),
        ),
        (
            {"type": "array", "uniqueItems": True},
            snapshot(
                "The JSON schema uses uniqueItems, which cannot be enforced. Leave it out, and check it yourself."
            ),
        ),
        (
            {"$ref": "http://example.com/x"},
            snapshot(
                "The JSON schema cannot be enforced: Resource 'http://example.com/x' is not present in a registry and retrieving it failed: Default retriever does not fetch resources. Use a simpler one."
            ),
        ),
        (
            {"$ref": "#/$defs/none"},
            snapshot("The JSON schema cannot be enforced: Pointer '/$defs/none' does not exist. Use a simpler one."),
        ),
        ({"type": "strin"}, snapshot("The JSON schema cannot be enforced: Invalid type: strin. Use a simpler one.")),
        (
            {"type": "string", "format": "colour"},
            snapshot("The JSON schema cannot be enforced: Unknown format: colour. Use a simpler one."),
        ),
        (
            {"type": "string", "pattern": "(?=a)b"},
            snapshot(
                "The JSON schema cannot be enforced: regex parse error: (?=a)b ^^^ error: look-around, including look-ahead and look-behind, is not supported. Use a simpler one."
            ),
        ),
        (
            {"type": "integer", "minimum": 5, "maximum": 3},
            snapshot(
                "The JSON schema cannot be enforced: Unsatisfiable schema: minimum (5) is greater than maximum (3). Use a simpler one."
            ),
        ),
        (
            {"oneOf": [{"type": "object"}, {"type": "object", "properties": {}}]},
            snapshot("The JSON schema has a oneOf whose forms overlap, which cannot be enforced. Use anyOf."),
        ),
        (
            False,
            snapshot(
                "The JSON schema cannot be enforced: Expecting object schema to apply options. Use a simpler one."
            ),
        ),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused(schema: Any, message: str) -> None:
    with raises(ConfigError, message):
        compile_grammar(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)), byte_vocabulary())


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (
            ConstraintKind.REGEX,
            "a(",
            snapshot(
                'The regular expression cannot be enforced: invalid regex "a(" (in regex): regex parse error: a( ^ error: unclosed group. Use a simpler one.'
            ),
        ),
        (
            ConstraintKind.REGEX,
            "(?<=a)b",
            snapshot(
                'The regular expression cannot be enforced: invalid regex "(?<=a)b" (in regex): regex parse error: (?<=a)b ^^^^ error: look-around, including look-ahead and look-behind, is not supported. Use a simpler one.'
            ),
        ),
        (
            ConstraintKind.LARK,
            "start: nothing",
            snapshot('The Lark grammar cannot be enforced: unknown name: "nothing". Use a simpler one.'),
        ),
        (
            ConstraintKind.LARK,
            "not a grammar",
            snapshot(
                "The Lark grammar cannot be enforced: 1(5): Expected token ':', found 'rule_name' (at \"a\" ('rule_name')). Use a simpler one."
            ),
        ),
    ],
)
def test_what_is_no_expression_or_grammar_is_refused(kind: ConstraintKind, text: str, message: str) -> None:
    with raises(ConfigError, message):
        compile_grammar(Constraint(kind, text), byte_vocabulary())


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}}},
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
        {"oneOf": [{"type": "string"}, {"type": "integer"}]},
        {"enum": ["red", 1, None, {"a": []}]},
        {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "additionalProperties": {"type": "number"}},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": False},
        {"type": "string", "minLength": 2, "maxLength": 1000},
        {"allOf": [{"type": "object", "properties": {"a": {"const": 1}}}, {"required": ["a"]}]},
        True,
    ],
)  # fmt: skip
def test_schemas_of_the_wild_are_taken(schema: Any) -> None:
    compile_grammar(Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)), byte_vocabulary())
