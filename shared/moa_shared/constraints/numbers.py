"""Numbers of JSON schemas: those that llguidance enforces exactly, and a refusal of all others. Pure; needs no library.

It computes with doubles and int64: beyond 2^53 it writes other values, or allows some that the schema does not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from moa_shared.errors import ConfigError

_EXACT = 1 << 53  # all integers below are doubles, and so are their neighbours
_INT64_END = 1 << 63
_LENGTH_END = 1 << 31  # characters or items that no answer has; the library's expressions count up to 2^32
_MOST_BOUND = 10**18  # what the library compares as digits
_LEAST_BOUND = 1e-60  # it nests an expression for each zero after the point, up to about 90
_MOST_FACTOR = (1 << 32) - 1  # of `multipleOf`, without its point
_MOST_SHOWN = 40  # characters of a number

_MAPS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})  # names to schemas
_DATA = frozenset({"default", "examples", "example"})
_BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"})
_LEAST_LENGTHS = frozenset({"minLength", "minItems", "minProperties", "minContains"})
_MOST_LENGTHS = frozenset({"maxLength", "maxItems", "maxProperties", "maxContains"})


def with_exact_numbers(schema: Any, name: str) -> Any:
    """A schema that allows the same answers, of numbers that are enforced exactly. `name`: of it, for errors."""
    try:
        return _exact(schema, name, "")
    except RecursionError:
        raise ConfigError(f"The {name} is nested too deeply.", hint="Use definitions.") from None


def _exact(schema: Any, name: str, path: str) -> Any:
    if isinstance(schema, list):
        return [_exact(each, name, f"{path}/{number}") for number, each in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    exact = {}
    for key, value in schema.items():
        if key in ("const", "enum"):
            for number in _numbers(value):
                if not _is_exact_value(number):
                    raise _refusal(name, key, number, path)
        elif key in _MAPS and isinstance(value, dict):
            value = {each: _exact(value[each], name, f"{path}/{key}/{each}") for each in value}
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if not _is_exact(key, value, schema.get("type")):
                raise _refusal(name, key, value, path)
            if key in _MOST_LENGTHS and value >= _LENGTH_END:
                continue
        elif key not in _DATA:
            value = _exact(value, name, f"{path}/{key}")
        exact[key] = value
    return exact


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield value


def _is_exact_value(number: int | float) -> bool:
    """Whether the library writes a number itself: one beyond int64 may become its end, or a crash."""
    return abs(number) < _INT64_END and number in (_double(number), _INT64_END - 1)


def _is_exact(key: str, number: int | float, kind: Any) -> bool:
    if not math.isfinite(number):
        return False
    if key in _BOUNDS:
        return _is_exact_bound(key, number, kind)
    if key == "multipleOf":
        return _is_exact_factor(number)
    return key not in _LEAST_LENGTHS or number < _LENGTH_END


def _is_exact_bound(key: str, number: int | float, kind: Any) -> bool:
    if abs(number) < _EXACT:
        return number == 0 or abs(number) >= _LEAST_BOUND
    if number == {"maximum": _INT64_END - 1, "exclusiveMaximum": _INT64_END}.get(key):
        return bool(kind == "integer")  # it takes the greatest int64 for what is above
    if key not in ("minimum", "maximum"):
        return False
    if kind == "integer" and -_INT64_END < number < _INT64_END and number == _double(number):
        return number < _MOST_BOUND if key == "minimum" else number > -_MOST_BOUND
    return abs(number) < _MOST_BOUND and _is_spelled(number)


def _is_exact_factor(number: int | float) -> bool:
    """Whether the library, which multiplies a double by ten until it is an integer, gets the right one."""
    if number <= 0:
        return True  # it says what is wrong
    factor, places = _double(number), 0
    while factor % 1:
        factor, places = factor * 10, places + 1
    return factor <= _MOST_FACTOR and Decimal(factor).scaleb(-places) == Decimal(repr(number))


def _is_spelled(number: int | float) -> bool:
    """Whether the shortest digits of the double next to it, which the library writes, are those of the number."""
    return Decimal(repr(_double(number))) == Decimal(repr(number))


def _double(number: int | float) -> float:
    return math.inf if abs(number) >= 1 << 1023 else float(number)


def _refusal(name: str, key: str, number: int | float, path: str) -> ConfigError:
    shown = repr(number)
    shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
    return ConfigError(
        f"The {name} has {key}: {shown}{f' at #{path}' if path else ''}, a number that cannot be enforced exactly.",
        hint="Leave it out, and check it yourself, or use a string.",
    )
