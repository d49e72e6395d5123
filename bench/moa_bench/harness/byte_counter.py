"""A TCP proxy that counts what passes: bytes at the socket, each way, whatever the program on either side says.

It counts TCP payload: HTTP/2 framing and headers are in, IP and TCP headers (52 bytes a packet) are not. State: the two
counts and the open connections. It runs on an event loop of its own in a thread of its own.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from moa_shared.errors import InternalError

_BUFFER_BYTES = 1 << 16
_START_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class SocketBytes:
    """Bytes that have passed."""

    up: int
    down: int

    def __sub__(self, earlier: "SocketBytes") -> "SocketBytes":
        return SocketBytes(self.up - earlier.up, self.down - earlier.down)


class ByteCounter:
    """Counts the bytes that pass a TCP proxy; made by `counting`."""

    def __init__(self, upstream: str) -> None:
        self.redirect(upstream)
        self._up = 0
        self._down = 0
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""

    def redirect(self, upstream: str) -> None:
        """New connections go to this "host:port"; those that are open stay where they are."""
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))

    def read(self) -> SocketBytes:
        """What has passed so far; may be called from any thread."""
        return SocketBytes(self._up, self._down)

    async def serve(self, ready: threading.Event, stopped: asyncio.Event) -> None:
        """Accept connections until `stopped`."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_BUFFER_BYTES)
        async with server:
            self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            ready.set()
            await stopped.wait()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._on_connection(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._upstream, limit=_BUFFER_BYTES)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, far_writer, up=True))
                group.create_task(self._pass(far_reader, writer, up=False))
        finally:
            for end in (writer, far_writer):
                end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_BUFFER_BYTES):
                if up:
                    self._up += len(data)
                else:
                    self._down += len(data)
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError, RuntimeError):
            writer.write_eof()


@contextlib.contextmanager
def counting(upstream: str) -> Iterator[ByteCounter]:
    """A counter in front of `upstream` ("host:port"); connect to its `address` instead."""
    counter = ByteCounter(upstream)
    loop = asyncio.new_event_loop()
    stopped = asyncio.Event()
    ready = threading.Event()

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(counter.serve(ready, stopped))

    thread = threading.Thread(target=run, name="byte-counter", daemon=True)
    thread.start()
    try:
        if not ready.wait(_START_TIMEOUT_S):
            raise InternalError("The byte counter did not start within 10 s.")
        yield counter
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(_START_TIMEOUT_S)
