"""Connections: whose they are, how long they wait for their client, and how many there are."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from moa_client.web import connection, runner
from moa_client.web.access import Access
from moa_client.web.app import make_app
from moa_client.web.connection import MOST_REFUSED, Owner, read_tables, user_of
from moa_client.web.runner import WebServer, bind, serve
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

HALF = b"GET /hello HTTP/1.1\r\nX: "
UPGRADE = (
    "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


class Served:
    """A server with three routes."""

    def __init__(self) -> None:
        self.changes = 0
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def hello(self, request: Request) -> Response:
        return PlainTextResponse("hello")

    async def change(self, request: Request) -> Response:
        self.changes += 1
        return PlainTextResponse("changed")

    async def wait(self, request: Request) -> Response:
        self.is_asked.set()
        await self.may_answer.wait()
        return PlainTextResponse("at last")

    async def live(self, socket: WebSocket) -> None:
        self.changes += 1
        await socket.accept()

    @asynccontextmanager
    async def serving(self, key: str = "") -> AsyncIterator[WebServer]:
        listener, closing = bind("127.0.0.1", 0), asyncio.Event()
        access = Access("127.0.0.1", listener.getsockname()[1], key=key)
        routes = [
            Route("/hello", self.hello),
            Route("/change", self.change, methods=["POST"]),
            Route("/wait", self.wait),
            WebSocketRoute("/live", self.live),
        ]
        server = await serve(make_app(routes, access), listener, closing, access)
        try:
            yield server
        finally:
            self.may_answer.set()
            await server.close()


class Client:
    """One connection."""

    def __init__(self, server: WebServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = f"host: localhost:{server.port}\r\n"
        self.reader, self.writer = reader, writer

    def send(self, line: str, more: str = "") -> None:
        self.writer.write(f"{line} HTTP/1.1\r\n{self._host}{more}\r\n".encode())

    async def ask(self, line: str, more: str = "") -> int:
        """Sends a request; the status of its response, which is read."""
        self.send(line, more)
        return await self.response()

    async def response(self) -> int:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = head.partition("content-length:")[2].partition("\r")[0]
        await self.reader.readexactly(int(length or 0))
        return int(head.split()[1])

    async def ends(self) -> bool:
        """Returns when the server has closed the connection; whether it has sent nothing more."""
        with suppress(ConnectionError):
            return await self.reader.read() == b""
        return True


@asynccontextmanager
async def connected(server: WebServer) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield Client(server, reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


# ------------------------------------------------------------ whose it is


@pytest.mark.parametrize("user", [None, 4242])
async def test_who_is_not_known_to_be_the_user_is_told_so_and_left(
    user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "user_of", lambda _: user)
    served = Served()
    async with served.serving() as server:
        for line, more in (("POST /change", "content-length: 0\r\n"), ("GET /live", UPGRADE)):
            async with connected(server) as client:
                assert await client.ask(line, more) == 403
                assert await client.ends()
    assert served.changes == 0


@pytest.mark.parametrize("line", ["POST /change", "GET /live"])
async def test_who_has_left_before_the_question_is_refused(line: str) -> None:
    served = Served()
    async with served.serving() as server, connected(server) as client:
        # nothing is awaited here: the server finds a connection that was reset, with a request that waits to be read
        with socket.create_connection(("127.0.0.1", server.port)) as hasty:
            more = UPGRADE if "live" in line else "content-length: 0\r\n"
            hasty.sendall(f"{line} HTTP/1.1\r\nhost: localhost:{server.port}\r\n{more}\r\n".encode())
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with connected(server) as later:
            assert await later.ask("GET /hello") == 200
        assert await client.ask("GET /hello") == 200
    assert served.changes == 0


async def test_with_a_key_nobody_is_asked_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "user_of", lambda _: 4242)
    async with Served().serving(key="0123456789abcdef") as server, connected(server) as client:
        assert await client.ask("GET /hello") == 401
        assert await client.ask("GET /hello", "authorization: Bearer 0123456789abcdef\r\n") == 200


# ------------------------------------------------------------ how long


async def test_a_connection_without_requests_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.SECONDS, "request", 0.05)
    async with Served().serving() as server, connected(server) as client:
        assert await client.ask("GET /hello") == 200
        assert await client.ends()


# ------------------------------------------------------------ how many


async def test_who_has_waited_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_CONNECTIONS", 3)
    served = Served()
    async with (
        served.serving() as server,
        connected(server) as busy,
        connected(server) as first,
        connected(server) as second,
    ):
        busy.send("GET /wait")
        await served.is_asked.wait()
        first.writer.write(HALF)
        assert await second.ask("GET /hello") == 200
        async with connected(server) as third:
            assert await third.ask("GET /hello") == 200
            assert await first.ends()
            assert await second.ask("GET /hello") == 200
            served.may_answer.set()
            assert await busy.response() == 200


async def test_where_all_are_busy_a_further_one_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MOST_CONNECTIONS", 1)
    served = Served()
    async with served.serving() as server, connected(server) as busy:
        busy.send("GET /wait")
        await served.is_asked.wait()
        async with connected(server) as client:
            assert await client.ends()


async def test_users_who_are_refused_have_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    users = iter([4242] * (MOST_REFUSED + 1))
    monkeypatch.setattr(connection, "user_of", lambda _: next(users, 0))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Served().serving())
        strangers = [await stack.enter_async_context(connected(server)) for _ in range(MOST_REFUSED + 1)]
        assert await strangers[-1].ends()
        async with connected(server) as client:
            assert await client.ask("GET /hello") == 200


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
REST = "01 00000000:00000000 00:00000000 00000000  {}        0 1 1 0 20 4 30 10 -1\n"
TCP = (
    HEAD + "   0: 0100007F:21E2 0100007F:C001 " + REST.format(7) + "   1: 0100007F:C001 0100007F:21E2 " + REST.format(8)
)
TCP6 = (
    HEAD
    + "   0: 00000000000000000000000001000000:C002 00000000000000000000000001000000:21E2 "
    + REST.format(9)
    + "   1: 0000000000000000FFFF00000100007F:C003 0000000000000000FFFF00000100007F:21E2 "
    + REST.format(10)
)


CLIENT, SERVER = ("127.0.0.1", 0xC001), ("127.0.0.1", 8674)
linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="this system has no /proc/net")


def test_the_tables_have_the_user_of_the_clients_end(tmp_path: Path) -> None:
    (tmp_path / "tcp").write_text(TCP)
    (tmp_path / "tcp6").write_text(TCP6)
    assert read_tables(CLIENT, SERVER, tmp_path) == Owner(1, 8, 1)
    assert read_tables(("::1", 0xC002), ("::1", 8674), tmp_path) == Owner(1, 9, 1)
    assert read_tables(("127.0.0.1", 0xC003), SERVER, tmp_path) == Owner(1, 10, 1)
    assert read_tables(("127.0.0.1", 0xC004), SERVER, tmp_path) is None


def test_a_system_that_has_no_tables(tmp_path: Path) -> None:
    assert read_tables(CLIENT, SERVER, tmp_path) is None


@pytest.mark.parametrize(
    ("owner", "user"),
    [
        (Owner(1, 1000, 5), 1000),
        (Owner(1, 0, 5), 0),
        (Owner(5, 1000, 5), 1000),  # it has sent all, and still reads
        (Owner(5, 0, 0), None),  # it was closed: the kernel says root
        (Owner(6, 0, 0), None),
        (Owner(1, 0, 0), None),
        (Owner(2, 1000, 5), None),  # another program that takes the port only now
        (Owner(10, 1000, 5), None),  # a server at that port
        (None, None),
    ],
)
def test_only_an_open_socket_says_whose_it_is(
    owner: Owner | None, user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "read_tables", lambda client, server: owner)
    ends = Mock(getpeername=Mock(return_value=CLIENT), getsockname=Mock(return_value=SERVER))
    assert user_of(ends) == user
    ends.getpeername.side_effect = [CLIENT, OSError("Transport endpoint is not connected")]
    assert user_of(ends) is None


@contextmanager
def ends_of(host: str, to: str = "") -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection; the second one was accepted."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        listener.listen()
        client = socket.socket(socket.AF_INET6 if ":" in (to or host) else socket.AF_INET)
        with client:
            client.connect((to or host, listener.getsockname()[1]))
            accepted, _ = listener.accept()
            with accepted:
                yield client, accepted


@linux
@pytest.mark.parametrize(("host", "to"), [("127.0.0.1", ""), ("::1", ""), ("127.0.0.1", "::ffff:127.0.0.1")])
def test_of_a_real_connection_it_is_this_process(host: str, to: str) -> None:
    if ":" in host + to and not Path("/proc/net/if_inet6").exists():
        return  # there is no IPv6 here
    with ends_of(host, to) as (client, accepted):
        assert user_of(accepted) == os.getuid()
        client.shutdown(socket.SHUT_WR)
        assert user_of(accepted) == os.getuid()


@linux
@pytest.mark.parametrize("linger", [b"", struct.pack("ii", 1, 0)])
def test_who_has_left_cannot_be_told(linger: bytes) -> None:
    with ends_of("127.0.0.1") as (client, accepted):
        if linger:  # closing resets the connection
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
        assert user_of(accepted) is None
