"""Stories as tests: each is run to its end in a world of its own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from moa_client.conversation.events import ServerChanged
from moa_testing import Screen, World, simulate

Given = ParamSpec("Given")


def simulated(story: Callable[Concatenate[World, Given], Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """The story as a test, which gives it a world and its other arguments."""

    @wraps(story)
    def test(*given: Given.args, **named: Given.kwargs) -> None:
        simulate(lambda world: story(world, *given, **named))

    parameters = list(inspect.signature(story).parameters.values())
    test.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    return test


def told(screen: Screen) -> list[str]:
    """What the reader learns of servers."""
    return [each.message for each in screen.of(ServerChanged)]
