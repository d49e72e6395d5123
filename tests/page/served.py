"""Serves the page with a fake daemon in a thread of its own, which a test can kill and start again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import uvicorn
from moa_client.page.routes import page_routes
from moa_client.web.access import Access
from moa_client.web.app import make_app
from moa_client.web.closing import Closing
from moa_client.web.runner import WebServer, bind, serve

from tests.page.fake_backend import FakeBackend, Script

T = TypeVar("T")


class ServedPage:
    """The page at `url`.

    Args:
        port: 0: any.
        key: that requests must show.
    """

    def __init__(self, scripts: Mapping[str, Script], port: int = 0, key: str = "") -> None:
        self._key = key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.backend = self.call(lambda: FakeBackend(scripts))
        self._server: WebServer | None = None
        self.port = port
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, action: Callable[[], T]) -> T:
        """Does something on the loop of the daemon."""

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def open_gate(self, name: str) -> None:
        """Lets the script go on that waits there."""
        self.call(lambda: self.backend.gates.open(name))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for the daemon."""

        async def wait() -> None:
            while not condition():  # noqa: ASYNC110 (the condition may be anything)
                await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(asyncio.wait_for(wait(), 30), self._loop).result(40)

    def start(self) -> None:
        """Serves, at the port of before if there was one."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def kill(self) -> None:
        """All connections break, and nobody listens."""
        asyncio.run_coroutine_threadsafe(self._kill(), self._loop).result(10)

    def close(self) -> None:
        """Ends the daemon."""
        self.kill()
        asyncio.run_coroutine_threadsafe(self._close_conversations(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        listener = bind("127.0.0.1", self.port)
        self.port = listener.getsockname()[1]
        access = Access("127.0.0.1", self.port, key=self._key)
        self._server = await serve(make_app(page_routes(self.backend), access), listener, Closing(), access)

    async def _kill(self) -> None:
        if self._server is not None:
            server: uvicorn.Server = self._server._server
            for connection in list(server.server_state.connections):
                with suppress(AttributeError):
                    connection.transport.abort()
            await self._server.close()
            self._server = None

    async def _close_conversations(self) -> None:
        for conversation in self.backend.open_conversations.values():
            await conversation.close()
