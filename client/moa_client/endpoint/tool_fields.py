"""The tools that a request offers, as OpenAI's requests have them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from moa_shared.errors import ConfigError
from pydantic import BaseModel, ConfigDict, PlainValidator
from pydantic_core import PydanticCustomError

from moa_client.tools.tool import ChoiceMode, Tool, ToolChoice, check_tools
from moa_client.web.error_form import RequestError


class _Field(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class FunctionField(_Field):
    """A function. Its schema is enforced where a call is required, `strict` or not."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(_Field):
    """A tool; there are only functions."""

    type: Literal["function"]
    function: FunctionField


def _choice(value: object) -> ToolChoice:
    match value:
        case "auto" | "none" | "required":
            return ToolChoice(ChoiceMode(value))
        case {"type": "function", "function": {"name": str(name)}}:
            return ToolChoice(ChoiceMode.NAMED, name)
    raise PydanticCustomError(
        "tool_choice", "expected 'auto', 'none', 'required' or {'type': 'function', 'function': {'name': ...}}"
    )


ToolChoiceField = Annotated[ToolChoice, PlainValidator(_choice)]


@dataclass(frozen=True, slots=True)
class ToolOffer:
    """The tools that an answer may call, if any.

    Args:
        is_forced: it must call one.
        is_parallel: it may make several calls.
    """

    tools: tuple[Tool, ...] = ()
    is_forced: bool = False
    is_parallel: bool = True


def tool_offer(fields: Sequence[ToolField], choice: ToolChoice, *, is_parallel: bool) -> ToolOffer:
    """What a request offers.

    Raises:
        RequestError: it cannot be offered.
    """
    tools = []
    for number, field in enumerate(fields):
        function = field.function
        with refusing(f"tools[{number}].function"):
            given = {} if function.parameters is None else {"parameters": function.parameters}
            tools.append(Tool(function.name, function.description or "", **given))
    with refusing("tools"):
        check_tools(tools)
    with refusing("tool_choice"):
        offered = choice.of(tools)
    is_parallel = is_parallel and choice.mode is not ChoiceMode.NAMED  # naming one asks for one call
    return ToolOffer(offered, choice.is_forced, is_parallel)


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


def refused(param: str, words: str) -> RequestError:
    """The refusal of a parameter, whose value cannot be used."""
    return RequestError(400, f"{param}: {words}.", param=param, code="invalid_value")
