"""Reads calls that are written as Python: `f(a=1)`, several lines of it, or a list. Pure: nothing is executed."""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Mapping
from typing import Any

from moa_client.tools.reading.calls import Calls
from moa_client.tools.reading.json_scanner import Mismatch
from moa_client.tools.reading.steps import Steps, read_until
from moa_client.tools.tool import Tool

MOST_CHARACTERS = 1 << 16  # of the code


def read_python(first: str, end: str, calls: Calls) -> Steps[None]:
    """Reads code that begins with `first`, up to `end`.

    Raises:
        Mismatch: it is anything but calls of tools with literal arguments.
    """
    code = first + (yield from read_until(end, MOST_CHARACTERS))
    for name, arguments in _calls_in(code, calls.tools):
        call = calls.begin()
        call.set_name(name)
        call.write(arguments)
        call.end()


def _calls_in(code: str, tools: Mapping[str, Tool]) -> list[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes: the code is not ours
            body = ast.parse(code.strip()).body
        found: list[ast.expr] = []
        for statement in body:
            if not isinstance(statement, ast.Expr):
                raise Mismatch
            found += statement.value.elts if isinstance(statement.value, ast.List) else [statement.value]
        if not found:
            raise Mismatch
        return [_call(each, tools) for each in found]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise Mismatch from None


def _call(found: ast.expr, tools: Mapping[str, Tool]) -> tuple[str, str]:
    if not isinstance(found, ast.Call) or not isinstance(found.func, ast.Name) or found.func.id not in tools:
        raise Mismatch
    order = list(tools[found.func.id].properties)
    if len(found.args) > len(order):
        raise Mismatch
    values: dict[str, Any] = {name: ast.literal_eval(value) for name, value in zip(order, found.args, strict=False)}
    for keyword in found.keywords:
        if keyword.arg is None or keyword.arg in values:
            raise Mismatch
        values[keyword.arg] = ast.literal_eval(keyword.value)
    return found.func.id, json.dumps(values, ensure_ascii=False, allow_nan=False)
