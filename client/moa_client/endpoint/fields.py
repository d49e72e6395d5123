"""What all parts of a request have in common: how fields are read, and how one is refused by its name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeVar

from moa_shared.errors import ConfigError
from moa_shared.programs.values import plain_words
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from moa_client.endpoint.refusals import Refusal
from moa_client.web.error_form import RequestError

TEXT_TYPES = (None, "text", "input_text", "output_text", "refusal")  # without one: as kept responses have them
AnyFields = TypeVar("AnyFields", bound="RequestFields")


class RequestFields(BaseModel):
    """A JSON object in a request: types are not converted, null counts as absent, and unknown fields are ignored.

    Attributes:
        refused: unknown fields that are refused instead.
    """

    model_config = ConfigDict(strict=True, extra="ignore")
    refused: ClassVar[Mapping[str, Refusal]] = {}

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: Any) -> Any:
        """The fields that are not null."""
        if not isinstance(value, dict):
            return value
        for name, each in value.items():
            refusal = cls.refused.get(name)
            if refusal is not None and name not in cls.names() and not refusal.allows(each):
                raise PydanticCustomError("refused", "{words}", {"name": name, "words": refusal.words})
        return {name: each for name, each in value.items() if each is not None}

    @classmethod
    def names(cls) -> set[str]:
        """Of its fields, as requests have them."""
        return {field.alias or name for name, field in cls.model_fields.items()}

    def check(self) -> None:
        """Checks what depends on several fields.

        Raises:
            RequestError: they do not fit together.
        """


class TextPart(RequestFields):
    """A part of a message."""

    text: str


def _text_parts(content: object) -> object:
    """The parts of what is a text, or a list of parts that are text."""
    if isinstance(content, str):
        return [{"text": content}]
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise PydanticCustomError("content", "expected a text, or a list of parts of type text")
    for number, part in enumerate(content):
        if (kind := part.get("type")) not in TEXT_TYPES:
            words = "part {number} is of type {kind}: models read text only"
            raise PydanticCustomError("content", words, {"number": number, "kind": str(kind)[:64]})
    return [{"text": part.get("refusal" if part.get("type") == "refusal" else "text")} for part in content]


TextParts = Annotated[list[TextPart], BeforeValidator(_text_parts)]


def parsed_request(kind: type[AnyFields], body: Mapping[str, Any], tags: Collection[str] = ()) -> AnyFields:
    """The request of a body.

    Args:
        tags: of the alternatives that the items of lists have, which are no part of a field's path.

    Raises:
        RequestError: it cannot be followed.
    """
    try:
        request = kind.model_validate(body)
    except ValidationError as error:
        raise _first_problem(error, tags) from None
    request.check()
    return request


def refused(param: str, words: str) -> RequestError:
    """The refusal of a parameter, whose value cannot be used."""
    return RequestError(400, f"{param}: {words}.", param=param, code="invalid_value")


def missing(param: str) -> RequestError:
    """The refusal of a request that lacks a parameter."""
    return RequestError(400, f"{param} is missing.", param=param, code="missing_required_parameter")


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


def _first_problem(error: ValidationError, tags: Collection[str]) -> RequestError:
    """The refusal of the first field that cannot be read."""
    # what kind of object it is comes before what such an object lacks
    first = min(error.errors(include_url=False), key=lambda each: each["loc"][-1:] != ("type",))
    param, more = _path(first["loc"], tags), first.get("ctx", {})
    match first["type"]:
        case "missing":
            return missing(param)
        case "refused":
            param = f"{param}.{more['name']}".lstrip(".")
            words = f"{param} is not supported. {more['words']}"
            return RequestError(400, words, param=param, code="unsupported_parameter")
        case "union_tag_not_found":
            return missing(f"{param}.type")
        case "union_tag_invalid":
            there = more["expected_tags"].replace("'", "")
            words = f"{param}.type is {more['tag'][:64]!r}, which is not supported. What there is: {there}."
            return RequestError(400, words, param=f"{param}.type", code="unsupported_parameter")
    return refused(param, plain_words(first["msg"]))


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
