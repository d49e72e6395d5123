"""JSON schemas of tools: which can be used, and which types an argument may have. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_shared.errors import ConfigError

MOST_DEPTH = 64  # of brackets in brackets
HINT = "Correct the tool's JSON schema."
_OF_SCHEMAS = ("properties", "$defs", "definitions")
_ALTERNATIVES = ("anyOf", "oneOf")


def check_schema(place: str, schema: Mapping[str, Any]) -> None:
    """Checks a schema.

    Args:
        place: of it, for errors.

    Raises:
        ConfigError: it is nested too deeply, or a keyword has a value that it cannot have.
    """
    if is_deeper(schema, MOST_DEPTH):
        raise ConfigError(f"The schema of {place} is nested more than {MOST_DEPTH} deep.", hint="Flatten it.")
    _check(place, schema)


def _check(place: str, schema: Any) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise ConfigError(f"The schema of {place} is not a JSON object.", hint=HINT)
    kinds = schema.get("type", [])
    _expect(place, "type", "a name or a list of names", _is_names([kinds] if isinstance(kinds, str) else kinds))
    _expect(place, "required", "a list of names", _is_names(schema.get("required", [])))
    _expect(place, "enum", "a list", isinstance(schema.get("enum", []), list))
    for key in _OF_SCHEMAS:
        inner = schema.get(key, {})
        _expect(place, key, "a JSON object", isinstance(inner, Mapping))
        for name, each in inner.items():
            _check(f"{place}.{name}", each)
    for key in _ALTERNATIVES:
        alternatives = schema.get(key, [True])
        _expect(place, key, "a list of schemas", isinstance(alternatives, list) and bool(alternatives))
        for each in alternatives:
            _check(place, each)
    _check(f"{place}[]", schema.get("items", True))


def _expect(place: str, key: str, expected: str, is_right: bool) -> None:
    if not is_right:
        raise ConfigError(f"In the schema of {place}, {key} is not {expected}.", hint=HINT)


def _is_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def is_deeper(value: Any, most: int) -> bool:
    """Whether brackets are nested more deeply than this."""
    if not isinstance(value, Mapping | list):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return most == 0 or any(is_deeper(each, most - 1) for each in inner)


MOST_REFERENCES = 8  # that lead to one another
ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """A schema, or the one that it refers to in the whole; None: there is none."""
    for _ in range(MOST_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(reference := schema.get("$ref"), str):
            return schema
        schema = root if reference.startswith("#/") else None
        for key in reference.split("/")[1:]:
            schema = schema.get(key) if isinstance(schema, Mapping) else None
    return None


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The types that a schema allows, as a part of the whole; all of them, where it does not say."""
    types: set[str] = set()
    seen: set[int] = set()  # schemas may refer to each other in circles
    waiting = [schema]
    while waiting:
        each = resolved(waiting.pop(), root)
        if id(each) in seen:
            continue
        seen.add(id(each))
        alternatives = []
        if isinstance(each, Mapping) and "type" not in each:
            alternatives = each.get("anyOf", each.get("oneOf", []))
        waiting += alternatives
        types |= frozenset() if alternatives else _own_types(each)
    return frozenset(types)


def _own_types(schema: Any) -> frozenset[str]:
    if isinstance(schema, Mapping):
        if "type" in schema:
            kinds = schema["type"]
            return (frozenset([kinds] if isinstance(kinds, str) else kinds) & ANY) or ANY
        if "const" in schema or "enum" in schema:
            return frozenset(map(type_of, [schema["const"]] if "const" in schema else schema["enum"]))
    return ANY


_NAMES = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}


def type_of(value: Any) -> str:
    return _NAMES.get(type(value), "object")
