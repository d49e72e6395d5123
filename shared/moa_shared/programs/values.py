"""Values of settings, as text or as a file of settings gives them, read as the types of their fields. Pure.

The types of settings are few, so this replaces a library of validation, which took a third of a program's start.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from moa_shared.text.plain_text import is_text

YES, NO = frozenset({"1", "true", "on", "yes", "y", "t"}), frozenset({"0", "false", "off", "no", "n", "f"})
LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (lambda value, limit: value >= limit, "at least"),
    "gt": (lambda value, limit: value > limit, "more than"),
    "le": (lambda value, limit: value <= limit, "at most"),
    "lt": (lambda value, limit: value < limit, "less than"),
}
_PLAIN = (  # pydantic's words, and ours
    (r"(?s).* valid integer.*", "expected a whole number"),
    (r"(?s).* valid number.*", "expected a number"),
    (r"(?s).* valid boolean.*", "expected true or false"),
    (r".* valid string", "expected text"),
    (r".* valid (list|tuple)", "expected a list"),
    (r".* valid dictionary.*", "expected a JSON object"),
    (r".*is not a valid path", "expected a path"),
    ("Input should be greater than or equal to", "expected at least"),
    ("Input should be greater than", "expected more than"),
    ("Input should be less than or equal to", "expected at most"),
    ("Input should be", "expected"),
    (r"Value error, | after validation|\.$", ""),
)
_WHOLE = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0*)?\s*", re.ASCII)


def read_value(kind: Any, value: object, limits: Mapping[str, float] = {}) -> Any:
    """A value of a setting.

    `kind`: of the field: bool, int, float, str, Path, a Literal of words, tuple[str, ...], or one of them or None.
    `value`: text, or what TOML has for it. `limits`: of a number: ge, gt, le, lt. ValueError: what was expected.
    """
    result = _read(kind, value)
    for name, limit in limits.items():
        holds, words = LIMITS[name]
        if not holds(result, limit):  # nor does it for NaN
            raise ValueError(f"expected {words} {limit}")
    return result


def plain_words(message: str) -> str:
    """What pydantic says of a value that it refuses, in the words of this module."""
    for theirs, ours in _PLAIN:
        message = re.sub(theirs, ours, message)
    return re.sub(r"^(expected )?[A-Z]", lambda found: found[0].lower(), message)


def plain_kind(kind: Any) -> Any:
    """The type of a field without its "or None"."""
    if get_origin(kind) in (Union, UnionType):
        return next(part for part in get_args(kind) if part is not NoneType)
    return kind


def _read(kind: Any, value: object) -> object:
    if value is None and plain_kind(kind) is not kind:
        return None
    kind = plain_kind(kind)
    if get_origin(kind) is Literal:
        return _read_choice(get_args(kind), value)
    if get_origin(kind) is tuple:
        if not isinstance(value, tuple | list):
            raise ValueError("expected a list of texts")
        return tuple(_read(str, part) for part in value)
    return _READERS[kind](value)


def _read_choice(choices: tuple[str, ...], value: object) -> object:
    if value in choices:
        return value
    *others, last = map(repr, choices)
    raise ValueError(f"expected {', '.join(others)} or {last}" if others else f"expected {last}")


def _read_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in YES | NO:
        return value.lower() in YES
    raise ValueError("expected on or off")


def _read_whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str) or not _WHOLE.fullmatch(value) or len(value) > 100:
        raise ValueError("expected a whole number")
    return int(value.partition(".")[0])


def _read_number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        if isinstance(value, str):
            return float(value)
    except ValueError:
        pass
    raise ValueError("expected a number")


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    if not is_text(value):
        raise ValueError("expected text in UTF-8")
    return value


def _read_path(value: object) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError("expected a path")
    return Path(value)


_READERS: Mapping[Any, Callable[[object], object]] = {
    bool: _read_switch,
    int: _read_whole,
    float: _read_number,
    str: _read_text,
    Path: _read_path,
}
