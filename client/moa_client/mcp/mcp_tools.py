"""The tools of all MCP servers that a file names; implements `ToolBox`.

State: the connections. Invariant: a server that fails costs its own tools, nothing else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from moa_shared.errors import ConfigError, UnavailableError
from moa_shared.text.plain_text import plain_line

from moa_client.mcp.connection import START_SECONDS, ToolServerConnection
from moa_client.mcp.server_file import ToolServerEntry
from moa_client.tools.tool import MOST_TOOLS, AnsweredCall, Tool, ToolCall, check_tools

if TYPE_CHECKING:
    from mcp import types

MOST_NAME = 64  # characters
MOST_PROBLEMS = 8  # told of one server
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


def offered_tools(listed: Mapping[str, Sequence[types.Tool] | None]) -> tuple[list[Tool], list[str]]:
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
                tool = Tool(name, each.description or "", each.input_schema, server, each.name)
                check_tools([*offered, tool])
            except ConfigError as error:
                problems.append(f"The tool {each.name} of {server} is left out: {error.message}")
            else:
                offered.append(tool)
        has_unknown = has_unknown or tools is None
    return offered, problems


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:MOST_NAME]


def result_text(result: types.CallToolResult) -> str:
    """The text of a result; what is no text is named in its place."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(map(_block_text, result.content))


def _block_text(block: types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "resource_link":
            return f"[{block.name}: {block.uri}]"
        case "resource":
            text: str | None = getattr(block.resource, "text", None)
            return f"[{block.resource.uri}, which is not text]" if text is None else text
        case kind:
            return f"[{kind} content, which models here cannot read]"


CALL_SECONDS = 300.0  # as long as the HTTP transport waits for a server


class McpTools:
    """The tools of some servers. `call_seconds`: how long a call may take; `start_seconds`: a server to start."""

    def __init__(
        self,
        entries: Sequence[ToolServerEntry],
        call_seconds: float = CALL_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._servers = {entry.name: ToolServerConnection(entry, start_seconds) for entry in entries}
        self._call_seconds = call_seconds
        self.tools: Sequence[Tool] = ()
        self._by_name: dict[tuple[str, str], Tool] = {}  # by server and name; "": whoever's is offered by that name
        self._problems: Sequence[str] = ()

    async def start(self) -> None:
        """Starts all servers at once; what cannot be had is among the remarks."""
        found = await asyncio.gather(*(self._start(server) for server in self._servers.values()))
        names = zip(self._servers, found, strict=True)
        self.tools, problems = offered_tools({name: None if isinstance(each, str) else each for name, each in names})
        self._problems = [*(why for why in found if isinstance(why, str)), *map(plain_line, problems)]
        self._by_name = {(server, each.name): each for each in self.tools for server in ("", each.server)}
        for each in self.tools:
            own = _name(each.listed)  # by which conversations may have it too, or as SERVER_NAME
            for name in (own, _name(f"{each.server}_{own}")):
                self._by_name.setdefault((each.server, name), each)

    @property
    def remarks(self) -> Sequence[str]:
        return [*self._problems, *(server.remark for server in self._servers.values() if server.remark)]

    def server_of(self, tool: str, server: str = "") -> str:
        found = self._by_name.get((server, tool))
        return found.server if found is not None else ""

    async def run(self, call: ToolCall, server: str = "") -> AnsweredCall:
        tool = self._by_name.get((server, call.name))
        if tool is None:
            return AnsweredCall(call, f"There is no tool {call.name} now.", is_error=True)
        try:
            async with asyncio.timeout(self._call_seconds):
                result = await self._servers[tool.server].call(tool.listed, call.values)
        except TimeoutError:
            return AnsweredCall(call, f"The tool has not answered within {self._call_seconds:g} s.", is_error=True)
        except UnavailableError as error:
            return AnsweredCall(call, error.message, is_error=True)
        return AnsweredCall(call, result_text(result), is_error=bool(result.is_error))

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    @staticmethod
    async def _start(server: ToolServerConnection) -> list[types.Tool] | str:
        try:
            return await server.start()
        except UnavailableError as error:
            return error.message
