"""Which types of JSON an argument may have, for forms that write texts without quotes. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from moa_client.tools.reading.json_scanner import is_json

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
    """The types that a schema allows; all of them, where it does not say.

    Args:
        root: the whole of which it is a part.
    """
    types: set[str] = set()
    seen: set[int] = set()  # schemas may refer to each other in circles
    waiting = [schema]
    while waiting:
        each = resolved(waiting.pop(), root)
        if id(each) in seen:
            continue
        seen.add(id(each))
        alternatives = _alternatives(each)
        waiting += alternatives
        types |= frozenset() if alternatives else _own_types(each)
    return frozenset(types)


def _alternatives(schema: Any) -> list[Any]:
    if not isinstance(schema, Mapping) or "type" in schema:
        return []
    alternatives: list[Any] = schema.get("anyOf", schema.get("oneOf", []))
    return alternatives


def _own_types(schema: Any) -> frozenset[str]:
    if not isinstance(schema, Mapping):
        return ANY
    if "type" in schema:
        kinds = schema["type"]
        return (frozenset([kinds] if isinstance(kinds, str) else kinds) & ANY) or ANY
    if "const" in schema:
        return frozenset({type_of(schema["const"])})
    if "enum" in schema:
        return frozenset(map(type_of, schema["enum"]))
    return ANY


def type_of(value: Any) -> str:
    """The type of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def escaped(text: str) -> str:
    """A text as it is between the quotes of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON that stands for an argument that was written as `text`."""
    kind = _kind_of(text)
    if kind != "string" and (kind in types or (kind == "integer" and "number" in types)):
        return text.strip()
    if text in ("True", "False", "None") and types & {"boolean", "null"}:
        return {"True": "true", "False": "false", "None": "null"}[text]  # templates write values as Python does
    return json.dumps(text, ensure_ascii=False)


def _kind_of(text: str) -> str:
    if not is_json(text):
        return "string"
    match text.strip()[0]:
        case "{":
            return "object"
        case "[":
            return "array"
        case "t" | "f":
            return "boolean"
        case "n":
            return "null"
        case '"':
            return "string"
        case _:
            return "number" if set(text) & set(".eE") else "integer"
