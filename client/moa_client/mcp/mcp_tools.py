"""The tools of all MCP servers that a file names, each started, called, and started again where it has ended.

Implements `ToolBox`. State: of each server the task that holds its connection, which anyio wants opened and closed by
the same task. Invariant: a server that fails costs its own tools, nothing else.
"""

import asyncio
import json
import logging
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TextIO

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import CONNECTION_CLOSED
from moa_shared.errors import ConfigError, UnavailableError
from moa_shared.plain_text import plain_line
from moa_shared.programs.run_loop import turns

from moa_client.mcp.server_file import ToolServerEntry
from moa_client.tools.tool import MOST_TOOLS, AnsweredCall, Tool, ToolCall, check_tools

START_SECONDS = 30.0  # npx and uvx fetch a program before they run it
CALL_SECONDS = 300.0  # as long as the HTTP transport waits for a server
END_SECONDS = 8.0  # a program has six and a half, then it is killed; a server over HTTP may not answer a goodbye
MOST_PAGES = 100  # of a list of tools
MOST_LISTED = 1000  # tools of one server: of all servers 128 can be offered
MOST_ANSWER = 8 << 20  # bytes of one answer over HTTP: pictures are not read, but do no harm
MOST_STDERR = 4096  # bytes that are kept of what a program writes
MOST_REASON = 200  # characters
MOST_NAME = 64
MOST_PROBLEMS = 8  # told of one server
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")

logging.getLogger("mcp").addHandler(logging.NullHandler())  # it would print tracebacks on the terminal


class ToolServerConnection:
    """The connection to one server, which may take `start_seconds` to start."""

    def __init__(self, entry: ToolServerEntry, start_seconds: float = START_SECONDS) -> None:
        self.entry = entry
        self._start_seconds = start_seconds
        self._client: Client | None = None
        self._is_ending = asyncio.Event()
        self._starting = asyncio.Lock()  # several conversations may find that it has ended
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> list[types.Tool]:
        stderr, started = bytearray(), asyncio.get_running_loop().create_future()
        self._is_ending = asyncio.Event()
        self._task = asyncio.create_task(self._hold(started, stderr))
        try:
            async with turns(self._start_seconds):
                return list(await started)
        except TimeoutError:
            reason = f"it has not answered within {self._start_seconds:g} s"
        except asyncio.CancelledError:
            await self.close()
            raise
        except Exception as error:  # noqa: BLE001 (whatever a program or a network does)
            reason = _reason(error)
        await self.close()
        lines = stderr.decode(errors="replace").strip().splitlines()
        said = f" ({plain_line(lines[-1].strip(), MOST_REASON)})" if lines else ""
        raise UnavailableError(f"The MCP server {self.entry.name} does not start: {reason}{said}.", hint="")

    async def call(self, tool: str, arguments: dict[str, object]) -> types.CallToolResult:
        """Calls a tool, as long as it takes; a server that has ended is started again."""
        async with self._starting:
            if self._client is None:
                await self.start()
        if (client := self._client) is None:
            raise UnavailableError(f"The MCP server {self.entry.name} has ended.", hint="")
        try:
            return await client.call_tool(tool, arguments)
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                await self._leave(client)
                reason = "has ended during the call"
            else:
                reason = f"refuses the call: {_reason(error)}"
        except Exception as error:  # noqa: BLE001 (a network, or a result against the protocol)
            await self._leave(client)
            reason = f"has not answered the call: {_reason(error)}"
        raise UnavailableError(f"The MCP server {self.entry.name} {reason}.", hint="")

    async def _leave(self, client: Client) -> None:
        """Ends a connection that has failed, if no other call has done so."""
        async with self._starting:
            if self._client is client:
                await self.close()

    async def close(self) -> None:
        """Ends it: a program is given a few seconds to end by itself before it is killed."""
        has_started, self._client = self._client is not None, None
        task, self._task = self._task, None
        self._is_ending.set()
        if task is None:
            return
        if not has_started:
            task.cancel()
        _, late = await asyncio.wait([task], timeout=END_SECONDS)
        for each in late:
            each.cancel()

    async def _hold(self, started: asyncio.Future[list[types.Tool]], stderr: bytearray) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await self._connect(stack, stderr)
                tools = await _list_tools(client)
                if not started.done():
                    self._client = client
                    started.set_result(tools)
                await self._is_ending.wait()
        except Exception as error:  # noqa: BLE001
            if not started.done():
                started.set_exception(error)

    async def _connect(self, stack: AsyncExitStack, stderr: bytearray) -> Client:
        entry = self.entry
        if entry.url:
            http_client = await stack.enter_async_context(
                create_mcp_http_client({"accept-encoding": "identity", **entry.headers})
            )
            http_client.event_hooks = {"response": [_bound]}
            http = streamable_http_client(entry.url, http_client=http_client, max_sse_event_size=MOST_ANSWER)
            return await stack.enter_async_context(Client(http))
        program = StdioServerParameters(
            command=entry.command, args=entry.args, env=entry.env, cwd=entry.cwd, encoding_error_handler="replace"
        )
        pipes = stdio_client(program, stack.enter_context(_tail(stderr)))
        return await stack.enter_async_context(Client(pipes))


async def _list_tools(client: Client) -> list[types.Tool]:
    tools: list[types.Tool] = []
    cursor = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) > MOST_LISTED:
            break
    return tools[:MOST_LISTED]


@contextmanager
def _tail(kept: bytearray) -> Iterator[TextIO]:
    """A file for what a program writes; the end of that is kept."""

    def read() -> None:
        with suppress(BlockingIOError):
            kept.extend(os.read(ours, 1 << 16))
            del kept[:-MOST_STDERR]

    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, read)
    try:
        with os.fdopen(theirs, "w") as file:
            yield file
    finally:
        read()
        loop.remove_reader(ours)
        os.close(ours)


class _BoundedBody(httpx2.AsyncByteStream):
    """The body of a response, as far as it may be read."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MOST_ANSWER
        async for piece in self._body:
            if (left := left - len(piece)) < 0:
                raise httpx2.StreamError(f"it has more than {MOST_ANSWER:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


async def _bound(response: httpx2.Response) -> None:
    """Bounds what is read of a response at once; of a stream of events the SDK bounds each event."""
    response.headers.pop("content-encoding", None)  # none was asked for, and a few bytes could become gigabytes
    is_whole = not response.headers.get("content-type", "").lower().startswith("text/event-stream")
    if is_whole and isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = _BoundedBody(response.stream)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.strerror:
        return plain_line(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    return plain_line(str(error).rstrip("."), MOST_REASON) or type(error).__name__


def offered_tools(listed: Mapping[str, Sequence[types.Tool] | None]) -> tuple[list[Tool], list[str]]:
    """The tools that can be offered together, and sentences about those that cannot.

    A tool keeps its name unless a server before its own has one of that name, or has not started and could have:
    then it is SERVER_NAME.

    `listed`: by server, in the order of the file; None: it has not started, so that nobody knows its tools.
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
        self.remarks: Sequence[str] = ()  # what cannot be had, in sentences
        self._by_name: dict[tuple[str, str], Tool] = {}  # by server and name; "": whoever's is offered by that name

    async def start(self) -> None:
        failed: dict[str, str] = {}

        async def start(name: str) -> Sequence[types.Tool] | None:
            try:
                return await self._servers[name].start()
            except UnavailableError as error:
                failed[name] = error.message
                return None

        found = await asyncio.gather(*map(start, self._servers))
        self.tools, problems = offered_tools(dict(zip(self._servers, found, strict=True)))
        self.remarks = [*(failed[name] for name in self._servers if name in failed), *map(plain_line, problems)]
        self._by_name = {(server, each.name): each for each in self.tools for server in ("", each.server)}
        for each in self.tools:
            own = _name(each.listed)  # by which conversations may have it too, or as SERVER_NAME
            for name in (own, _name(f"{each.server}_{own}")):
                self._by_name.setdefault((each.server, name), each)

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
