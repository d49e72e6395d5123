"""The daemon's socket for our own programs: one JSON object a line, one conversation a connection.

State: the connections. Invariant: a program that does not read holds up only itself; one that sends nonsense is told.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from moa_shared.errors import DataError

from moa_client.failures import told
from moa_client.surface.messages import MOST_QUESTION_BYTES, Fields, decode_request, encode_line, error_fields
from moa_client.surface.surface_session import GONE, Open, serve_surface

WRITE_SECONDS = 60.0  # a program that takes nothing in for so long is left
Control = Callable[[Fields], Awaitable[Fields]]
log = logging.getLogger(__name__)


class DaemonSocketServer:
    """Listens on the socket at `path`, in the place of a stale one; `control` answers what is about no conversation."""

    def __init__(self, path: Path, open_it: Open, control: Control) -> None:
        self._path = path
        self._open = open_it
        self._control = control
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begins to listen; only this user can connect."""
        self._path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._accept, self._path, limit=MOST_QUESTION_BYTES)
        finally:
            os.umask(before)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._path.unlink(missing_ok=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(fields: Fields) -> None:
            writer.write(encode_line(fields))
            async with asyncio.timeout(WRITE_SECONDS):
                await writer.drain()

        messages = _read(reader, send)
        try:
            async for message in messages:
                try:
                    if message.get("do") == "open":
                        await serve_surface(message, messages, send, self._open)
                        return
                    await send(await self._control(message))
                except GONE:
                    raise
                except BaseException as error:  # noqa: BLE001 (a defect, too, is told)
                    await send(error_fields(told(error, "What was asked for")))
        except GONE:
            log.info("a program has left")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read(reader: asyncio.StreamReader, send: Callable[[Fields], Awaitable[None]]) -> AsyncIterator[Fields]:
    """The messages of a program, until it leaves; one that is too long is the last."""
    while True:
        try:
            line = await reader.readuntil()
        except asyncio.IncompleteReadError:
            return
        except asyncio.LimitOverrunError:
            error = DataError(f"A message has more than {MOST_QUESTION_BYTES} bytes.", hint="Ask a shorter question.")
            await send(error_fields(error))
            return
        try:
            yield decode_request(line)
        except DataError as error:
            await send(error_fields(error))
