"""The server inside a running loop, over sockets: what it reads, whose connections are, and how long they wait."""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from moa_client.page.routes import TRY_AGAIN, Tab
from moa_client.web import server as server_module
from moa_client.web.access import Access, RequestError
from moa_client.web.server import MOST_BYTES, WebServer, bind, make_app, read_json, serve
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

KEY = "0123456789abcdef"
UPGRADE = (
    "upgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n"
    "sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


class Flood(Response):
    """Sends without end, until the client has left."""

    def __init__(self, left: asyncio.Event) -> None:
        super().__init__()
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_next() -> object:
            return await receive()

        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()  # the request's empty body
        leaving = asyncio.create_task(receive_next())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self._left.set()


class Served:
    def __init__(self) -> None:
        self.changes = 0
        self.is_asked, self.may_answer, self.is_left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hello(self, request: Request) -> Response:
        return PlainTextResponse("hello")

    async def count(self, request: Request) -> Response:
        members = len(await read_json(request))
        self.changes += 1
        return JSONResponse({"members": members})

    async def wait(self, request: Request) -> Response:
        self.is_asked.set()
        await self.may_answer.wait()
        return PlainTextResponse("at last")

    async def flood(self, request: Request) -> Response:
        return Flood(self.is_left)

    async def live(self, socket: WebSocket) -> None:
        self.changes += 1
        await socket.accept("moa")
        await socket.send_text("hello")
        await socket.close()

    @asynccontextmanager
    async def serving(self, key: str = "") -> AsyncIterator[WebServer]:
        listener, closing = bind("127.0.0.1", 0), asyncio.Event()
        access = Access("127.0.0.1", listener.getsockname()[1], key=key)
        routes = [
            *(Route(f"/{each.__name__}", each) for each in (self.hello, self.wait, self.flood)),
            Route("/count", self.count, methods=["POST"]),
            WebSocketRoute("/live", self.live),
        ]
        server = await serve(make_app(routes, access), listener, closing, access)
        try:
            yield server
        finally:
            self.may_answer.set()
            await server.close()


class Client:
    def __init__(self, server: WebServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = f"host: localhost:{server.port}\r\n"
        self.reader, self.writer = reader, writer

    def send(self, line: str, more: str = "", content: bytes = b"") -> None:
        self.writer.write(f"{line} HTTP/1.1\r\n{self._host}{more}\r\n".encode() + content)

    async def ask(self, line: str, more: str = "", content: bytes = b"") -> int:
        """Sends a request; the status of its response, which is read."""
        self.send(line, more, content)
        return (await self.response())[0]

    async def response(self) -> tuple[int, str]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = head.partition("content-length:")[2].partition("\r")[0]
        return int(head.split()[1]), (await self.reader.readexactly(int(length or 0))).decode()

    async def ends(self) -> bool:
        """Returns when the server has closed the connection; whether it has sent nothing more."""
        with suppress(ConnectionError):
            return await self.reader.read() == b""
        return True


@asynccontextmanager
async def connected(server: WebServer) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    try:
        yield Client(server, reader, writer)
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


LARGE = b" " * 10_000_000


@pytest.mark.parametrize(("more", "content", "status", "words"), [
    ("content-length: 8\r\n", b'{"a": 1}', 200, '{"members":1}'),
    # ten million bytes are announced, none of them comes; or all come, and the client can read why it was refused
    (
        "content-length: 10000000\r\nexpect: 100-continue\r\n", b"", 413,
        f"is longer than {MOST_BYTES} bytes. Send less.",
    ),
    ("content-length: 10000000\r\n", LARGE, 413, "request_too_large"),
    ("transfer-encoding: chunked\r\n", b"989680\r\n" + LARGE + b"\r\n0\r\n\r\n", 413, "request_too_large"),
    ("content-length: 8\r\n", b'{"a"', 408, "did not arrive within 0.5 s. Send it again."),
    *(
        (f"content-length: {len(each)}\r\n", each, 400, "invalid_json")
        for each in (b"{", b"[" * 100_000, b"\xff", b'"a"', b"[]")
    ),
], ids=["whole", "announced", "large", "chunked", "late", "cut", "deep", "bytes", "text", "list"])  # fmt: skip
async def test_bodies_are_read_within_bounds(
    more: str, content: bytes, status: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if status == 408:
        monkeypatch.setattr(server_module, "BODY_SECONDS", 0.5)
    async with Served().serving() as server, connected(server) as client:
        client.send("POST /count", more, content)
        answered, body = await client.response()
        assert (answered, words in body) == (status, True)
        if status in (408, 413):
            assert await client.ends()


@pytest.mark.parametrize("user", [None, 4242])
async def test_who_is_not_known_to_be_the_user_is_told_so_and_left(
    user: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "user_of", lambda _: user)
    served = Served()
    async with served.serving() as server:
        for line, more in (("POST /count", "content-length: 2\r\n"), ("GET /live", UPGRADE)):
            async with connected(server) as client:
                client.send(line, more, b"{}" if "POST" in line else b"")
                status, body = await client.response()
                assert (status, json.loads(body)["error"]["type"]) == (403, "permission_error")
                assert await client.ends()
    assert served.changes == 0
    async with served.serving(KEY) as server, connected(server) as client:  # with a key nobody is asked who it is
        assert await client.ask("GET /hello") == 401
        assert await client.ask("GET /hello", f"authorization: Bearer {KEY}\r\n") == 200
        assert await client.ask("GET /live", UPGRADE) == 401
    assert served.changes == 0


@pytest.mark.parametrize("line", ["POST /count", "GET /live"])
async def test_who_has_left_before_the_question_is_refused(line: str) -> None:
    served = Served()
    async with served.serving() as server, connected(server) as client:
        # nothing is awaited here: the server finds a connection that was reset, with a request that waits to be read
        with socket.create_connection(("127.0.0.1", server.port)) as hasty:
            more = UPGRADE if "live" in line else "content-length: 2\r\n"
            hasty.sendall(f"{line} HTTP/1.1\r\nhost: localhost:{server.port}\r\n{more}\r\n{{}}".encode())
            hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        async with connected(server) as later:
            assert await later.ask("GET /hello") == 200
        assert await client.ask("GET /hello") == 200
    assert served.changes == 0


async def test_who_keeps_the_server_waiting_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served()
    async with served.serving() as server, connected(server) as asking:
        assert await asking.ask("GET /hello") == 200
        asking.send("GET /wait")
        await served.is_asked.wait()
        monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.05)
        monkeypatch.setattr(server_module, "READER_SECONDS", 0.05)
        async with connected(server) as silent, connected(server) as slow:
            slow.writer.write(b"POST /count HTTP/1.1\r\n")
            assert await silent.ends()
            assert await slow.ends()
        served.may_answer.set()
        assert await asking.response() == (200, "at last")
        assert await asking.ends()
        monkeypatch.undo()
        async with connected(server) as deaf:
            monkeypatch.setattr(server_module, "READER_SECONDS", 0.05)
            deaf.send("GET /flood")
            await served.is_left.wait()


def test_an_error_has_the_form_of_its_path() -> None:
    error = RequestError(400, "The prompt has 9 tokens.", param="messages", code="context_length_exceeded")
    kind = {"type": "invalid_request_error", "message": "prompt is too long: The prompt has 9 tokens."}
    assert error.fields_at("/v1/messages") == {"type": "error", "error": kind}
    kinds = {408: "invalid_request_error", 413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
    assert {each: RequestError(each, "").fields_at("/v1/messages")["error"]["type"] for each in kinds} == kinds


class Transport:
    def __init__(self) -> None:
        self.incoming = [{"type": "websocket.connect"}]
        self.sent: list[dict[str, Any]] = []
        self.is_asleep = False
        scope = {"type": "websocket", "subprotocols": ["moa", "moa.key.secret"], "headers": []}
        self.tab = Tab(WebSocket(scope, self.receive, self.send), send_s=0.01)

    async def receive(self) -> dict[str, Any]:
        if not self.incoming:
            await asyncio.Event().wait()
        return self.incoming.pop()

    async def send(self, message: Any) -> None:
        if self.is_asleep and message["type"] == "websocket.send":
            await asyncio.Event().wait()
        self.sent.append(message)


async def test_a_tab_that_takes_nothing_in_is_cut_off_while_it_says_nothing_either() -> None:
    transport = Transport()
    is_left = False

    async def serve(tab: Tab) -> None:
        nonlocal is_left
        transport.is_asleep = True
        telling = asyncio.create_task(tab.send({"event": "committed"}))
        try:
            async for _ in tab.messages():
                pass
        finally:
            await telling
            is_left = True

    await transport.tab.serve(serve)
    assert is_left
    assert transport.sent[0] == {"type": "websocket.accept", "subprotocol": "moa", "headers": []}
    assert [message.get("code") for message in transport.sent] == [None, TRY_AGAIN]
