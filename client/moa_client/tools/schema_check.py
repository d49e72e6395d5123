"""Checks the form of a tool's JSON schema, so that whatever reads it can rely on it. Pure.

Only keywords are checked that are read here; what others mean is for the library that enforces them.
"""

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
    if _is_deeper(schema, MOST_DEPTH):
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


def _is_deeper(value: Any, most: int) -> bool:
    if not isinstance(value, Mapping | list):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return most == 0 or any(_is_deeper(each, most - 1) for each in inner)
