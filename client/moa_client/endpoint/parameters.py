"""What becomes of the parameters and fields of requests, whichever API they are of: used, ignored because nothing
depends on them, or refused unless they say what happens anyway. docs/api.md has them as tables.

Pure. Invariant: no parameter that would change the answer is accepted without an effect.
"""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moa_client.web.error_form import RequestError

Api = Literal["chat", "completions", "responses", "embeddings", "messages", "ollama"]
_USES = {"used": "used", "ignored": "accepted, without effect"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Args:
        name: of the field.
        apis: that have it.
        use: what becomes of it.
        words: for the documentation; of one that is refused also for its error.
        harmless: of one that is refused, the values that ask for nothing special; null always is one.
    """

    name: str
    apis: tuple[Api, ...]
    use: Literal["used", "ignored", "refused"]
    words: str
    harmless: tuple[Any, ...] = ()


def used_fields(given: Mapping[str, Any], known: Mapping[str, Parameter], path: str = "") -> dict[str, Any]:
    """The fields of a JSON object that have an effect; null counts as absent.

    Args:
        known: all that there are, by name.
        path: of the object, before the names in errors, such as "messages[0].".

    Raises:
        RequestError: one is unknown, or would need what there is not.
    """
    used = {}
    for name, value in given.items():
        param = f"{path}{name[:64]}"
        parameter = known.get(name)
        if parameter is None:
            raise RequestError(400, _unknown(name, param, known), param=param, code="unknown_parameter")
        if value is None:
            continue
        if parameter.use == "used":
            used[name] = value
        elif parameter.use == "refused" and not _is_among(value, parameter.harmless):
            raise RequestError(
                400, f"{param} is not supported. {parameter.words}", param=param, code="unsupported_parameter"
            )
    return used


def fields_table(fields: Sequence[Parameter]) -> str:
    """Fields of one kind of object as a Markdown table; those with the same words share a line."""
    lines = ["| field | what becomes of it | |", "| --- | --- | --- |"]
    for (use, words), same in itertools.groupby(fields, lambda each: (use_words(each), each.words)):
        lines.append(f"| {', '.join(f'`{each.name}`' for each in same)} | {use} | {words} |")
    return "\n".join(lines) + "\n"


def use_words(parameter: Parameter) -> str:
    """What becomes of it."""
    return _USES.get(parameter.use) or _refused_words(parameter)


def _refused_words(parameter: Parameter) -> str:
    values = " or ".join(f"`{_json(value)}`" for value in parameter.harmless)
    return f"only as {values}" if values else "refused"


def _json(value: object) -> str:
    return json.dumps(value)


def _is_among(value: Any, harmless: tuple[Any, ...]) -> bool:
    """Whether it is one of these; numbers and truth values are told apart."""
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in harmless)


def _unknown(name: str, param: str, known: Mapping[str, Parameter]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {near[0]}?" if near else "docs/api.md lists those that there are."
    return f"Unknown parameter: {param!r}. {hint}"
