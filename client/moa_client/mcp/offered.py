"""Which tools of several MCP servers are offered, and under which names. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moa_shared.errors import ConfigError

from moa_client.tools.tool import MOST_TOOLS, Tool, check_tools

MOST_NAME = 64  # characters
MOST_PROBLEMS = 8  # told of one server
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


def offered_tools(listed: Mapping[str, Sequence[ListedTool] | None]) -> tuple[list[Tool], list[str]]:
    """The tools that can be offered together, and sentences about those that cannot.

    Args:
        listed: by server, in the order of the file; None: it has not started, so that nobody knows its tools.

    A tool keeps its name unless a server before its own has one of that name, or has not started and could have:
    then it is SERVER_NAME.
    """
    offered: list[Tool] = []
    problems: list[str] = []
    has_unknown = False
    for server, tools in listed.items():
        before = len(problems)
        for each in tools or ():
            if len(offered) == MOST_TOOLS or len(problems) == before + MOST_PROBLEMS:
                problems.append(f"The tools of {server} from {each.name} on are left out.")
                break
            short = _name(each.name)
            is_taken = has_unknown or any(tool.name == short for tool in offered)
            try:
                name = _name(f"{server}_{short}") if is_taken else short
                tool = Tool(name, each.description, each.schema, server, each.name)
                check_tools([*offered, tool])
            except ConfigError as error:
                problems.append(f"The tool {each.name} of {server} is left out: {error.message}")
            else:
                offered.append(tool)
        has_unknown = has_unknown or tools is None
    return offered, problems


def names_of(tool: Tool) -> tuple[str, str, str]:
    """The names that conversations may have for a tool of a server: as it is offered now, its own, and SERVER_NAME."""
    own = _name(tool.listed)
    return tool.name, own, _name(f"{tool.server}_{own}")


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:MOST_NAME]
