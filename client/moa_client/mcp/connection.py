"""One MCP server while it is used: started, listed, called, and started again where it has ended.

State: the task that holds the connection, which anyio wants opened and closed by the same task.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TextIO

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import CONNECTION_CLOSED, CallToolResult, Tool
from moa_shared.errors import UnavailableError
from moa_shared.text.plain_text import plain_line
from pydantic import ValidationError

from moa_client.mcp.server_file import ToolServerEntry

MOST_BYTES = 4096


class StderrTail:
    """Reads what a program writes, and keeps the end of it."""

    def __init__(self) -> None:
        self._tail = b""

    @property
    def last_line(self) -> str:
        """The last line; empty: there is none."""
        lines = self._tail.decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    @contextmanager
    def opened(self) -> Iterator[TextIO]:
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._read, ours)
        try:
            with os.fdopen(theirs, "w") as file:
                yield file
        finally:
            self._read(ours)
            loop.remove_reader(ours)
            os.close(ours)

    def _read(self, descriptor: int) -> None:
        try:
            self._tail = (self._tail + os.read(descriptor, 1 << 16))[-MOST_BYTES:]
        except BlockingIOError:
            return


START_SECONDS = 30.0  # npx and uvx fetch a program before they run it
END_SECONDS = 8.0  # a program has six and a half, then it is killed; a server over HTTP may not answer a goodbye
MOST_PAGES = 100  # of a list of tools
MOST_LISTED = 1000  # tools of one server: of all servers 128 can be offered
MOST_ANSWER = 8 << 20  # bytes of one answer over HTTP: pictures are not read, but do no harm
MOST_REASON = 200  # characters

logging.getLogger("mcp").addHandler(logging.NullHandler())  # it would print tracebacks on the terminal


class ToolServerConnection:
    """The connection to one server.

    Args:
        start_seconds: how long it may take to start.

    Attributes:
        remark: what its user should know of it, a sentence; empty: nothing.
    """

    def __init__(self, entry: ToolServerEntry, start_seconds: float = START_SECONDS) -> None:
        self.entry = entry
        self.remark = ""
        self._start_seconds = start_seconds
        self._client: Client | None = None
        self._is_ending = asyncio.Event()
        self._starting = asyncio.Lock()  # several conversations may find that it has ended
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> list[Tool]:
        """Starts it; its tools."""
        tail, started = StderrTail(), asyncio.get_running_loop().create_future()
        self._is_ending = asyncio.Event()
        self._task = asyncio.create_task(self._hold(started, tail))
        try:
            async with asyncio.timeout(self._start_seconds):
                tools: list[Tool] = await started
                return tools
        except TimeoutError:
            reason = f"it has not answered within {self._start_seconds:g} s"
        except asyncio.CancelledError:
            await self.close()
            raise
        except Exception as error:  # noqa: BLE001 (whatever a program or a network does)
            reason = _reason(error)
        await self.close()
        said = f" ({plain_line(tail.last_line, MOST_REASON)})" if tail.last_line else ""
        raise UnavailableError(f"The MCP server {self.entry.name} does not start: {reason}{said}.", hint="")

    async def call(self, tool: str, arguments: dict[str, object]) -> CallToolResult:
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

    async def _hold(self, started: asyncio.Future[list[Tool]], tail: StderrTail) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await self._connect(stack, tail)
                tools = await _list_tools(client)
                if not started.done():
                    self._client = client
                    started.set_result(tools)
                await self._is_ending.wait()
        except Exception as error:  # noqa: BLE001
            if not started.done():
                started.set_exception(error)

    async def _connect(self, stack: AsyncExitStack, tail: StderrTail) -> Client:
        entry = self.entry
        if entry.url:
            http_client = await stack.enter_async_context(
                create_mcp_http_client({"accept-encoding": "identity", **entry.headers})
            )
            http_client.event_hooks = {"response": [_bound]}
            http = streamable_http_client(entry.url, http_client=http_client, max_sse_event_size=MOST_ANSWER)
            return await stack.enter_async_context(Client(http))
        program = StdioServerParameters(
            command=entry.command,
            args=list(entry.arguments),
            env=dict(entry.environment),
            cwd=entry.folder,
            encoding_error_handler="replace",
        )
        pipes = stdio_client(program, stack.enter_context(tail.opened()))
        return await stack.enter_async_context(Client(pipes, message_handler=self._on_message))

    async def _on_message(self, message: object) -> None:
        """Notes the first line of standard output that is no message: a program's print, say."""
        if not self.remark and isinstance(message, ValidationError):
            line = str(message.errors(include_url=False)[0]["input"]).strip()
            if line:
                name, shown = self.entry.name, plain_line(line, MOST_REASON)
                self.remark = f"The MCP server {name} prints what is no message and belongs on standard error: {shown}"


async def _list_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor = None
    for _ in range(MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None or len(tools) > MOST_LISTED:
            break
    return tools[:MOST_LISTED]


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
    """Why something has failed, as part of a sentence."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.strerror:
        return plain_line(f"{error.strerror}: {error.filename}" if error.filename else error.strerror)
    return plain_line(str(error).rstrip("."), MOST_REASON) or type(error).__name__
