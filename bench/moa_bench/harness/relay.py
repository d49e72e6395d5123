"""A TCP proxy whose server can be another one from now on; when it ends, its connections do, as those of a lost link.

State: the open connections. It runs on an event loop of its own in a thread of its own.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from moa_shared.errors import InternalError

_BUFFER_BYTES = 1 << 16
_START_TIMEOUT_S = 10.0


class Relay:
    """Passes bytes to a server and back; made by `relaying`."""

    def __init__(self, upstream: str) -> None:
        self.redirect(upstream)
        self.address = ""
        self._connections: set[asyncio.Task[None]] = set()

    def redirect(self, upstream: str) -> None:
        """New connections go to this "host:port"; those that are open stay where they are."""
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))

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
        with contextlib.closing(writer):
            try:
                far_reader, far_writer = await asyncio.open_connection(*self._upstream, limit=_BUFFER_BYTES)
            except OSError:
                return
            with contextlib.closing(far_writer):
                await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        while data := await reader.read(_BUFFER_BYTES):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()


@contextlib.contextmanager
def relaying(upstream: str) -> Iterator[Relay]:
    """A relay in front of `upstream` ("host:port"); connect to its `address` instead."""
    relay, loop = Relay(upstream), asyncio.new_event_loop()
    stopped, ready = asyncio.Event(), threading.Event()

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(relay.serve(ready, stopped))

    thread = threading.Thread(target=run, name="relay", daemon=True)
    thread.start()
    try:
        if not ready.wait(_START_TIMEOUT_S):
            raise InternalError("The relay did not start within 10 s.")
        yield relay
    finally:
        loop.call_soon_threadsafe(stopped.set)
        thread.join(_START_TIMEOUT_S)
