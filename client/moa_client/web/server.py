"""The HTTP server of the daemon, inside its event loop: the application with its guards, and who is connected.

uvicorn asks neither whose a connection is nor how long its client may keep it waiting.
State: of one server, its socket and connections. Invariant: when `close` returns, no request is under way.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, cast

import uvicorn
from moa_shared.errors import ConfigError, MoaError
from moa_shared.plain_text import parse_request
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from moa_client.web.access import Access, Address, RequestError, guards, request_error, user_of

MOST_BYTES = 1 << 20  # of a body: far more than a context holds
BODY_SECONDS = 30.0
LINGER_SECONDS = 2.0
APIS = ("/v1/", "/api/")  # before the paths of the endpoint
log = logging.getLogger(__name__)


async def read_json(request: Request) -> Mapping[str, Any]:
    """The JSON object that a request brings.

    RequestError: it is too large, comes too slowly, or is none. ClientDisconnect: the client has left.
    """
    length, body, parts = request.headers.get("content-length", ""), bytearray(), request.stream()
    is_large = length.isdigit() and int(length) > MOST_BYTES
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while not is_large and (part := await anext(parts, None)) is not None:
                body += part
                is_large = len(body) > MOST_BYTES
    except TimeoutError:
        raise RequestError(
            408, f"The body of the request did not arrive within {BODY_SECONDS:g} s. Send it again."
        ) from None
    if is_large:
        if "expect" not in request.headers:
            with suppress(TimeoutError):  # a client that still sends would be cut off before it has read the answer
                async with asyncio.timeout(LINGER_SECONDS):
                    async for _ in parts:
                        pass
        raise RequestError(
            413, f"The body of the request is longer than {MOST_BYTES} bytes. Send less.", code="request_too_large"
        )
    try:
        value = parse_request(bytes(body))
    except ValueError as error:
        raise RequestError(400, f"The body of the request is no JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError(400, "The body of the request must be a JSON object.", code="invalid_json")
    return value


def make_app(routes: Sequence[BaseRoute], access: Access) -> Starlette:
    """The application. `routes`: of the endpoint, the page and whatever else there is."""
    app = Starlette(
        routes=routes,
        middleware=[*guards(access), Middleware(OnePath)],
        exception_handlers=dict.fromkeys((RequestError, MoaError, HTTPException, Exception), _refuse),
    )
    app.router.redirect_slashes = False  # `OnePath` has taken them away
    return app


class OnePath:
    """Makes a path with slashes at its end the same as without: some programs join addresses so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await self._app(scope, receive, send)


def _refuse(request: Request, error: Exception) -> Response:
    path = request.url.path
    match error:
        case RequestError():
            refusal = error
        case MoaError():
            refusal = request_error(error)
        case HTTPException(status_code=404):
            api = next((each for each in APIS if f"{path}/".startswith(each)), "/none/")
            paths = [each.path for each in request.app.routes if isinstance(each, Route) and each.path.startswith(api)]
            known = f" What there is: {', '.join(each for each in paths if '{' not in each)}." if paths else ""
            refusal = RequestError(404, f"There is nothing at {path}.{known}", code="unknown_url")
        case HTTPException():
            refusal = RequestError(error.status_code, f"{request.method} {path}: {error.detail}.")
        case _:
            log.error("a request to %s has failed", path, exc_info=error)
            refusal = RequestError(500, "This is a defect of moa: please report it with the log.", code="internal")
    return refusal.response(path)


REQUEST_SECONDS = 75.0  # for the head of a request, and between requests: longer than pools of usual clients keep one
READER_SECONDS = 60.0  # that a client may take nothing in
MOST_CONNECTIONS = 512  # and at most half of the files that may be open: the rest is for the program itself
MOST_REFUSED = 8  # connections of other users that have not asked yet, to be told so


class Connection(asyncio.Protocol):
    """One connection, until uvicorn has it. State: its requests under way; a clock runs while there is none."""

    def __init__(self, doors: Doors, **uvicorns: Any) -> None:
        self._doors = doors
        self._uvicorns = uvicorns
        self._loop = asyncio.get_running_loop()
        self._clock: asyncio.TimerHandle | None = None
        self._requests = 0
        self.refusal: RequestError | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.refusal = self._doors.refusal(self.transport)
        if not self._doors.finds_room(self):
            self.transport.abort()
        elif self.refusal is None:
            self._start_clock()
            inner = H11Protocol(**self._uvicorns)
            self.transport.set_protocol(inner)
            inner.connection_made(self.transport)

    def data_received(self, data: bytes) -> None:
        """Of one who may not enter: the answer, whatever was asked."""
        if self.refusal is not None:
            response = self.refusal.response()
            head = [*response.raw_headers, (b"connection", b"close")]
            lines = [f"HTTP/1.1 {response.status_code} Forbidden".encode(), *(b": ".join(each) for each in head)]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
            self.transport.close()

    @property
    def is_waiting(self) -> bool:
        return self._clock is not None

    def begin(self) -> None:
        self._requests += 1
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def end(self) -> None:
        self._requests -= 1
        if not self._requests:  # the next one may have begun already
            self._start_clock()

    def _start_clock(self) -> None:
        self._clock = self._loop.call_later(REQUEST_SECONDS, self.transport.abort)

    async def send(self, send: Send, message: Message) -> None:
        impatience = self._loop.call_later(READER_SECONDS, self.transport.abort)
        try:
            await send(message)
        finally:
            impatience.cancel()


class Doors:
    """All connections of an application: whose they may be, and that one that waits makes room where there is none."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MOST_CONNECTIONS if files == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, files // 2)
        self._connections: dict[Address, Connection] = {}  # by the client's; the one that has waited longest is first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = self._connections.get(scope["client"])
        if connection is None:  # it has left
            return
        connection.begin()
        try:
            await self._app(scope, receive, partial(connection.send, send))
        finally:
            connection.end()
            if self._connections.get(scope["client"]) is connection:
                self._connections[scope["client"]] = self._connections.pop(scope["client"])

    def refusal(self, transport: asyncio.Transport) -> RequestError | None:
        """Asks once, before any byte is looked at: later the client may have left, and nobody knows whose it was."""
        try:
            if not self._access.key:
                self._access.check_user(user_of(transport.get_extra_info("socket")))
        except RequestError as refusal:
            return refusal
        return None

    def finds_room(self, connection: Connection) -> bool:
        here = {key: each for key, each in self._connections.items() if not each.transport.is_closing()}
        self._connections, peer = here, connection.transport.get_extra_info("peername")
        if connection.refusal is not None:
            has_room = sum(each.refusal is not None for each in here.values()) < MOST_REFUSED
        elif not (has_room := len(here) < self._most):
            longest = next((each for each in here.values() if each.is_waiting), None)
            if has_room := longest is not None:
                longest.transport.abort()
        if has_room and peer is not None:
            here[peer[:2]] = connection
        return has_room and peer is not None

    def close(self) -> None:
        for connection in self._connections.values():
            connection.transport.abort()


MOST_MESSAGE_BYTES = 1 << 20  # of a WebSocket
CLOSE_SECONDS = 5  # that requests have to end when the server closes

# It tells of requests that are no HTTP, and of defects, which the application logs itself: not on standard error.
logging.getLogger("uvicorn").addHandler(logging.NullHandler())


class WebServer:
    """An application that listens. `closing`: tells requests under way that the server closes."""

    def __init__(self, app: ASGIApp, listener: socket.socket, closing: asyncio.Event, access: Access) -> None:
        host, self.port = listener.getsockname()[:2]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._closing = closing
        self._doors = Doors(app, access)
        self._server = _Server(
            uvicorn.Config(
                self._doors,
                http=cast("Any", partial(Connection, self._doors)),
                ws="websockets-sansio",
                ws_max_size=MOST_MESSAGE_BYTES,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=3600,  # `Connection` has a shorter clock
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )
        self.listens = self._server.listens
        self._serving = asyncio.create_task(self._server.serve([listener]))

    async def close(self) -> None:
        """Ends the requests under way, each with an error in its own form, and closes the socket."""
        self._closing.set()
        self._server.left.set()
        await self._serving
        self._doors.close()


async def serve(app: ASGIApp, listener: socket.socket, closing: asyncio.Event, access: Access) -> WebServer:
    """Serves requests until the server is closed. `closing`: the one that the application's routes know."""
    server = WebServer(app, listener, closing, access)
    await server.listens.wait()
    return server


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens: what connects to it waits until it is served. `port`: 0: any that is free."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"Another program listens on {host}:{port}."
            hint = "Give another port with --endpoint-port; 0 takes any that is free."
        else:
            message = f"The endpoint cannot listen on {host}:{port}: {error.strerror or error}."
            hint = "Give an address of this device with --endpoint-host."
        raise ConfigError(message, hint=hint) from None
    listener.setblocking(False)
    return listener


class _Server(uvicorn.Server):
    """uvicorn's server, which leaves signals to the program, and sleeps while nothing happens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()
        self.left = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        self.listens.set()
        await self.left.wait()
