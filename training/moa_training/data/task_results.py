"""Results of questions that have one: a number, as the reference names it and as an answer states it. Pure."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any

_NUMBER = re.compile(r"(?:(?<![\w)])-)?\$?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(r"####([^\n]*)|\\boxed\{([^}]*)\}")


def reference_result(row: dict[str, Any]) -> Decimal | None:
    """The number that a row of the questions names as its result: `final_answer`, or what the first reference marks
    (GSM8K's "#### 18").
    """
    given = row.get("final_answer")
    if given is not None:
        return _number(str(given))
    reference = row.get("reference")
    first = reference[0] if isinstance(reference, list) and reference else None
    return stated_result(first) if isinstance(first, str) and _MARKED.search(first) else None


def stated_result(text: str) -> Decimal | None:
    """The number that a text ends up with: a marked one ("#### 18", "\\boxed{18}"), or else the last one."""
    marked = [number for match in _MARKED.findall(text) if (number := _number("".join(match))) is not None]
    return marked[-1] if marked else _number(text)


def _number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "").replace("$", "")) if found else None
    except InvalidOperation:
        return None
