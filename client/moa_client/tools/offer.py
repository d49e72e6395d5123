"""The tools that an answer may call. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moa_client.tools.tool import ChoiceMode, Tool, ToolChoice


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


def offer_of(tools: Sequence[Tool], choice: ToolChoice, *, is_parallel: bool) -> ToolOffer:
    """What is offered.

    Raises:
        ConfigError: a call is required of a tool that is not there.
    """
    # naming one tool asks for one call
    return ToolOffer(choice.of(tools), choice.is_forced, is_parallel and choice.mode is not ChoiceMode.NAMED)
