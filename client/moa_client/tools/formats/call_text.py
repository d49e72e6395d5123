"""Reads calls that are written as JSON objects. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Container
from typing import Any, NoReturn

from moa_client.tools.formats.base import Found
from moa_client.tools.schemas import MOST_DEPTH, is_deeper
from moa_client.tools.tool import is_name

_SPACE = re.compile(r"[ \t\n\r]*")


class CutError(ValueError):
    """The text ends before its JSON does."""


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_JSON = json.JSONDecoder(parse_constant=_no_json)


def skip(text: str, at: int, expected: str = "") -> int:
    """The place after white space and what is expected then."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if not text.startswith(expected, at):
        raise ValueError(f"no {expected} at {at}")
    return at + len(expected)


def json_value(text: str, at: int = 0) -> tuple[Any, int]:
    try:
        value, end = _JSON.raw_decode(text, at)
    except ValueError:
        if _is_begun(text[at:]):
            raise CutError from None
        raise
    if is_deeper(value, MOST_DEPTH):
        raise ValueError("its brackets are nested too deeply")
    return value, end


def _is_begun(text: str) -> bool:
    from pydantic_core import from_json  # devices without the endpoint never need it

    try:
        from_json(text or "[", allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return False
    return True


def read_call(text: str, at: int, known: Container[str] | None) -> tuple[tuple[str, str], int]:
    """A call that is an object with its name and its arguments, and where it ends.

    Args:
        known: the names that it may have, with arguments; None: any, since nothing but a call is an object here.
    """
    found, end = _members(text, at)
    name = json.loads(found.get("name", '""'))
    given = next((found[key] for key in ("arguments", "parameters") if key in found), "" if known is not None else "{}")
    if not isinstance(name, str) or not is_name(name) or (known is not None and name not in known):
        raise ValueError("no name")
    return (name, arguments_of(given)), end


def arguments_of(written: str) -> str:
    """The arguments as an object, which models write as a text, too."""
    value, _ = json_value(written)
    if isinstance(value, str):
        written = value
        value, end = json_value(value.strip())
        if value is None or end < len(written.strip()):
            raise ValueError("no object")
    if not isinstance(value, dict):
        raise ValueError("no object")
    return written


def _members(text: str, at: int) -> tuple[dict[str, str], int]:
    """The JSON of each member of an object, and where that ends."""
    begin, (_, end) = at, json_value(text, at)
    found: dict[str, str] = {}
    at = skip(text, begin, "{")
    while not text.startswith("}", at := skip(text, at)):
        key, at = _JSON.raw_decode(text, at)
        at = skip(text, skip(text, at, ":"))
        _, after = _JSON.raw_decode(text, at)
        found.setdefault(key, text[at:after])
        at = skip(text, after)
        at += text.startswith(",", at)
    return found, end


def read_calls(text: str, at: int, known: Container[str] | None, between: str = r"\s*,") -> Found:
    """Calls that follow each other.

    Args:
        between: what separates two of them, as a pattern.

    Raises:
        ValueError: there is none, nor the beginning of one.
    """
    calls: list[tuple[str, str]] = []
    end, separator = 0, re.compile(between)
    while True:
        try:
            call, end = read_call(text, skip(text, at), known)
        except CutError:
            return Found(calls, end, is_cut=True)
        except ValueError:
            if not calls:
                raise
            return Found(calls, end)
        calls.append(call)
        if (separated := separator.match(text, end)) is None:
            return Found(calls, end)
        at = separated.end()
