"""Gemma 4's notation of a schema's values as a grammar. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moa_client.tools.formats.argument_types import ANY, types_of
from moa_client.tools.formats.enforceable import check_keywords, choices_of, refusal
from moa_client.tools.formats.grammar import Grammar

QUOTE = '<|"|>'
_KNOWN = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items"},
    "string": {"enum", "const"},
    "integer": {"enum", "const"},
    "number": {"enum", "const"},
    "boolean": {"enum", "const"},
    "null": {"enum", "const"},
}
_PLAIN = {
    "integer": r"/-?(0|[1-9][0-9]{0,17})/",
    "number": r"/-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?/",
    "boolean": '("true" | "false")',
    "null": '"null"',
}


def value_grammar(place: str, schema: Mapping[str, Any] | bool, grammar: Grammar) -> str:
    """A term for a value of a schema.

    Args:
        place: of the schema, for errors.

    Raises:
        ConfigError: it cannot be enforced.
    """
    if isinstance(schema, bool):
        schema = {}
    for key in ("anyOf", "oneOf"):
        if key in schema:
            check_keywords(place, schema, {key})
            return grammar.choice([value_grammar(place, each, grammar) for each in schema[key]])
    kinds = types_of(schema, {})
    check_keywords(place, schema, set().union(*(_KNOWN[kind] for kind in kinds)))
    if (values := choices_of(place, schema, kinds)) is not None:
        return grammar.choice([_constant(value, grammar) for value in values])
    if kinds == ANY:
        raise refusal("allows any value", place)
    return grammar.choice([_of_type(kind, place, schema, grammar) for kind in sorted(kinds)])


def _of_type(kind: str, place: str, schema: Mapping[str, Any], grammar: Grammar) -> str:
    if kind == "object":
        return grammar.rule(_object(place, schema, grammar))
    if kind == "array":
        item = value_grammar(f"{place}[]", schema.get("items", {}), grammar)
        return grammar.rule(f'"[" ({item} ("," {item})*)? "]"')
    if kind == "string":
        return grammar.rule(f"{grammar.markup(QUOTE)} {grammar.text_until(QUOTE)}")
    return grammar.rule(_PLAIN[kind])


def _object(place: str, schema: Mapping[str, Any], grammar: Grammar) -> str:
    """An object with its properties in the schema's order, of which those that are not required may be left out."""
    properties: Mapping[str, Any] = schema.get("properties", {})
    required = schema.get("required", [])
    first = rest = '"}"'  # what may follow before any property was written, and after one
    for key, each in reversed(list(properties.items())):
        value = value_grammar(f"{place}.{key}", each, grammar)
        written = f"{grammar.markup(key + ':')} {value} {rest}"
        if key in required:
            first, rest = grammar.rule(written), grammar.rule(f'"," {written}')
        else:
            first, rest = grammar.rule(f"{written} | {first}"), grammar.rule(f'"," {written} | {rest}')
    return f'"{{" {first}'


def _constant(value: Any, grammar: Grammar) -> str:
    if isinstance(value, str):
        return grammar.markup(f"{QUOTE}{value}{QUOTE}")
    return grammar.markup(json.dumps(value))
