"""What all parts of a request have in common: how fields are read, and how one is refused by its name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from moa_shared.errors import ConfigError
from pydantic import BaseModel, ConfigDict, ValidationError

from moa_client.web.error_form import RequestError

_NOTHING: Mapping[str, str] = MappingProxyType({})


class RequestFields(BaseModel):
    """A JSON object in a request: types are not converted, and unknown fields are errors."""

    model_config = ConfigDict(strict=True, extra="forbid")

    def check(self) -> None:
        """Checks what depends on several fields.

        Raises:
            RequestError: they do not fit together.
        """


def refused(param: str, words: str) -> RequestError:
    """The refusal of a parameter, whose value cannot be used."""
    return RequestError(400, f"{param}: {words}.", param=param, code="invalid_value")


@contextmanager
def refusing(param: str) -> Iterator[None]:
    """Refuses the parameter if the block finds that it cannot be used.

    Raises:
        RequestError: it does.
    """
    try:
        yield
    except ConfigError as error:
        raise refused(param, f"{error.message} {error.hint}".rstrip(" .")) from None


def first_problem(
    error: ValidationError, expected: Mapping[str, str] = _NOTHING, tags: Collection[str] = ()
) -> RequestError:
    """The refusal of the first field that cannot be read.

    Args:
        expected: in place of pydantic's words, by the name of the field.
        tags: of the alternatives that the items of lists have, which are no part of a field's path.
    """
    first = error.errors(include_url=False)[0]
    param = _path(first["loc"], tags)
    if first["type"] == "missing":
        return RequestError(400, f"{param} is missing.", param=param, code="missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return RequestError(400, f"{param} is not supported.", param=param, code="unsupported_parameter")
    if first["loc"][-1] in expected:
        return refused(param, expected[str(first["loc"][-1])])
    words = first["msg"].removesuffix(".").replace("Input should be", "expected").replace(" after validation", "")
    words = re.sub(r"a valid dictionary or instance of \w+", "a JSON object", words).replace("expected F", "expected f")
    return refused(param, words[:1].lower() + words[1:])


def _path(loc: tuple[int | str, ...], tags: Collection[str]) -> str:
    """Such as messages[0].role; without the names of types that alternatives have in it."""
    path = ""
    for union in (("response_format",), ("text", "format")):
        if loc[: len(union)] == union:
            loc = (*union, *loc[len(union) + 1 :])
    for number, part in enumerate(loc):
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in tags and isinstance(loc[number - 1], int) and number < len(loc) - 1:
            continue
        elif part not in ("str", "list[int]"):
            path += f".{part}" if path else part
    return path
