"""The tools that a request offers, as OpenAI's requests have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from moa_client.endpoint.fields import RequestFields, refusing
from moa_client.tools.offer import ToolOffer, offer_of
from moa_client.tools.tool import ChoiceMode, Tool, ToolChoice, check_tools


class FunctionField(RequestFields):
    """A function. Its schema is enforced where a call is required, `strict` or not."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolField(RequestFields):
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


def tool_offer(
    functions: Sequence[FunctionField], choice: ToolChoice, *, is_parallel: bool, at: str = ".function"
) -> ToolOffer:
    """What a request offers.

    Args:
        at: where a tool of the request has its function.

    Raises:
        RequestError: it cannot be offered.
    """
    tools = []
    for number, function in enumerate(functions):
        with refusing(f"tools[{number}]{at}"):
            given: dict[str, Any] = {} if function.parameters is None else {"parameters": function.parameters}
            tools.append(Tool(function.name, function.description or "", **given))
    with refusing("tools"):
        check_tools(tools)
    with refusing("tool_choice"):
        return offer_of(tools, choice, is_parallel=is_parallel)
