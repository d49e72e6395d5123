"""Runs the HTTP application inside a running event loop: uvicorn without its signal handlers and ticks.

State: of one server, its socket and connections. Invariant: when `close` returns, no request is under way.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from moa_shared.errors import ConfigError
from starlette.types import ASGIApp

from moa_client.web.access import Access
from moa_client.web.connection import BoundedConnection

MOST_MESSAGE_BYTES = 1 << 20  # of a WebSocket
MOST_CONNECTIONS = 512  # and at most half of the files that may be open: the rest is for the program itself
BACKLOG = 128
CLOSE_SECONDS = 5  # that requests have to end when the server closes

# It tells of requests that are no HTTP, and of defects, which the application logs itself: not on standard error.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())


class WebServer:
    """An application that listens. `closing`: tells requests under way that the server closes."""

    def __init__(self, app: ASGIApp, listener: socket.socket, closing: asyncio.Event, access: Access) -> None:
        host, self.port = listener.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._closing = closing
        self._server = _Server(
            uvicorn.Config(
                app,
                http=cast("Any", partial(BoundedConnection, access=access, most=_most_connections())),
                ws="websockets-sansio",
                ws_max_size=MOST_MESSAGE_BYTES,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )
        self._serving = asyncio.create_task(self._server.serve([listener]))

    async def listening(self) -> None:
        await self._server.listens.wait()

    async def close(self) -> None:
        """Ends the requests under way, each with an error in its own form, and closes the socket."""
        self._closing.set()
        self._server.leave()
        await self._serving


async def serve(app: ASGIApp, listener: socket.socket, closing: asyncio.Event, access: Access) -> WebServer:
    """Serves requests until the server is closed. `closing`: the one that the application's routes know."""
    server = WebServer(app, listener, closing, access)
    await server.listening()
    return server


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens: what connects to it waits until it is served. `port`: 0: any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            message = f"Another program listens on {host}:{port}."
            hint = "Give another port with --endpoint-port; 0 takes any that is free."
        else:
            message = f"The endpoint cannot listen on {host}:{port}: {error.strerror or error}."
            hint = "Give an address of this device with --endpoint-host."
        raise ConfigError(message, hint=hint) from None
    return listener


def _most_connections() -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to the program, and sleeps while nothing happens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self._left = asyncio.Event()

    def leave(self) -> None:
        self._left.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.listens.set()
        await self._left.wait()
