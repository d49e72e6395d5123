"""The tools of all MCP servers that a file names; implements `ToolBox`.

State: the connections. Invariant: a server that fails costs its own tools, nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from moa_shared.errors import UnavailableError
from moa_shared.text.plain_text import plain_line

from moa_client.mcp.connection import START_SECONDS, ToolServerConnection
from moa_client.mcp.offered import ListedTool, names_of, offered_tools
from moa_client.mcp.result_text import result_text
from moa_client.mcp.server_file import ToolServerEntry
from moa_client.tools.tool import AnsweredCall, Tool, ToolCall

CALL_SECONDS = 300.0  # as long as the HTTP transport waits for a server


class McpTools:
    """The tools of some servers.

    Args:
        call_seconds: how long a call may take; `start_seconds`: a server to start.
    """

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
            for name in names_of(each):
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
        """Ends all servers."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))

    @staticmethod
    async def _start(server: ToolServerConnection) -> list[ListedTool] | str:
        try:
            return await server.start()
        except UnavailableError as error:
            return error.message
