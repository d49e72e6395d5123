"""Which tools of several MCP servers are offered, and under which names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_shared.errors import ConfigError

from moa_client.tools.tool import Tool, check_tools

MOST_NAME = 64  # characters
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as its server lists it.

    Args:
        schema: of its arguments.
    """

    name: str
    description: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool as it is offered.

    Args:
        listed: its name at the server.
    """

    tool: Tool
    server: str
    listed: str


def offered_tools(listed: Mapping[str, Sequence[ListedTool]]) -> tuple[list[OfferedTool], list[str]]:
    """The tools that can be offered together, and a sentence for each that cannot.

    Args:
        listed: by server. Of two tools with one name, the second is offered as SERVER_NAME.
    """
    offered: list[OfferedTool] = []
    problems: list[str] = []
    for server, tools in listed.items():
        for each in tools:
            try:
                tool = _tool(server, each, {every.tool.name for every in offered})
                check_tools([*(every.tool for every in offered), tool])
            except ConfigError as error:
                problems.append(f"The tool {each.name} of {server} is left out: {error.message}")
            else:
                offered.append(OfferedTool(tool, server, each.name))
    return offered, problems


def _tool(server: str, listed: ListedTool, taken: set[str]) -> Tool:
    name = _name(listed.name)
    return Tool(_name(f"{server}_{name}") if name in taken else name, listed.description, listed.schema)


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:MOST_NAME]
