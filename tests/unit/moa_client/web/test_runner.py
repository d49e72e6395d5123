"""The server inside a running loop, over sockets."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import websockets
from inline_snapshot import snapshot
from moa_client.web import app, connection
from moa_client.web.access import Access
from moa_client.web.app import make_app, read_json
from moa_client.web.error_form import RequestError
from moa_client.web.runner import WebServer, bind, serve
from moa_shared.errors import ConfigError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from tests.support.messages import says


async def count(request: Request) -> Response:
    return JSONResponse({"members": len(await read_json(request))})


class Flood(Response):
    """Sends without end, until the client has left."""

    def __init__(self, left: asyncio.Event) -> None:
        super().__init__()
        self._left = left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()  # the request's empty body
        leaving = asyncio.create_task(_received(receive))
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        self._left.set()


async def _received(receive: Receive) -> object:
    return await receive()


async def greet(socket: WebSocket) -> None:
    await socket.accept("moa")
    await socket.send_text("hello")
    await socket.close()


@asynccontextmanager
async def served(*more: BaseRoute, key: str = "") -> AsyncIterator[WebServer]:
    listener, closing = bind("127.0.0.1", 0), asyncio.Event()
    routes = [Route("/count", count, methods=["POST"]), WebSocketRoute("/live", greet), *more]
    access = Access("127.0.0.1", listener.getsockname()[1], key=key)
    server = await serve(make_app(routes, access), listener, closing, access)
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def connected(server: WebServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def ask(server: WebServer, head: str, content: bytes = b"") -> tuple[bytes, bytes]:
    """Sends a request, and reads until the connection is closed: head and body of the response."""
    async with connected(server) as (reader, writer):
        host = f"host: localhost:{server.port}\r\n"
        writer.write(f"{head}\r\n{host}\r\n".encode() + content)
        whole = await reader.read()
    return whole.partition(b"\r\n\r\n")[0], whole.partition(b"\r\n\r\n")[2]


async def test_a_body_within_the_limit_is_read() -> None:
    async with served() as server:
        head, content = await ask(server, "POST /count HTTP/1.1\r\nconnection: close\r\ncontent-length: 8", b'{"a": 1}')
    assert b"200 OK" in head
    assert json.loads(content) == {"members": 1}


async def test_a_body_that_is_announced_as_too_long_is_not_read() -> None:
    async with served() as server:  # ten million bytes are announced, none of them comes
        head, content = await ask(server, "POST /count HTTP/1.1\r\ncontent-length: 10000000\r\nexpect: 100-continue")
    assert b"413 " in head.splitlines()[0]
    assert b"100" not in head.splitlines()[0]
    assert json.loads(content)["error"] == snapshot(
        {
            "message": "The body of the request is longer than 1048576 bytes. Send less.",
            "type": "invalid_request_error",
            "param": None,
            "code": "request_too_large",
        }
    )


async def test_a_client_that_sends_too_much_can_read_why_it_was_refused() -> None:
    async with served() as server:
        whole = b" " * 10_000_000
        for head, sent in (
            (f"POST /count HTTP/1.1\r\ncontent-length: {len(whole)}", whole),
            ("POST /count HTTP/1.1\r\ntransfer-encoding: chunked", b"989680\r\n" + whole + b"\r\n0\r\n\r\n"),
        ):
            answer, content = await ask(server, head, sent)
            assert b"413 " in answer.splitlines()[0]
            assert json.loads(content)["error"]["code"] == "request_too_large"


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_json, "__defaults__", (app.MOST_BYTES, 0.05))
    monkeypatch.setattr(app, "LINGER_SECONDS", 0.05)
    async with served() as server:
        head, content = await ask(server, "POST /count HTTP/1.1\r\ncontent-length: 8", b'{"a"')
    assert b"408 " in head.splitlines()[0]
    assert json.loads(content)["error"]["message"] == snapshot(
        "The body of the request did not arrive within 0.05 s. Send it again."
    )


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, b"\xff", b'"a"', b"[]"])
async def test_a_body_that_is_no_object_is_refused(content: bytes) -> None:
    async with served() as server:
        head, answer = await ask(
            server, f"POST /count HTTP/1.1\r\nconnection: close\r\ncontent-length: {len(content)}", content
        )
    assert b"400 " in head.splitlines()[0]
    assert json.loads(answer)["error"]["code"] == "invalid_json"


async def test_what_is_no_request_is_refused_and_what_never_comes_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.SECONDS, "head", 0.05)
    async with served() as server:
        head, _ = await ask(server, "\x00\x01")
        assert b"400 " in head.splitlines()[0]
        async with connected(server) as (reader, writer):
            writer.write(b"POST /count HTTP/1.1\r\n")
            assert await reader.read() == b""


async def test_a_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.SECONDS, "reader", 0.05)
    left = asyncio.Event()

    async def flood(request: Request) -> Response:
        return Flood(left)

    async with served(Route("/flood", flood)) as server, connected(server) as (_, writer):
        writer.write(f"GET /flood HTTP/1.1\r\nhost: localhost:{server.port}\r\n\r\n".encode())
        await left.wait()


async def test_a_page_shows_the_key_where_it_opens_a_websocket() -> None:
    key = "0123456789abcdef"
    async with served(key=key) as server:
        url = f"ws://localhost:{server.port}/live"
        protocols = [websockets.Subprotocol("moa"), websockets.Subprotocol(f"moa.key.{key}")]
        async with websockets.connect(url, subprotocols=protocols, proxy=None) as socket:
            assert await socket.recv() == "hello"
            assert socket.subprotocol == "moa"
        for origin, offered in (
            (None, protocols[:1]),
            (websockets.Origin("https://evil.example"), protocols),
        ):
            with pytest.raises(websockets.InvalidStatus) as caught:
                async with websockets.connect(url, subprotocols=offered, origin=origin, proxy=None):
                    pass
            assert caught.value.response.status_code == (401 if origin is None else 403)


async def test_a_port_that_is_taken_is_named() -> None:
    async with served() as server:
        with says(ConfigError, "Another program listens on 127.0.0.1:PORT."):
            bind("127.0.0.1", server.port)


def test_an_address_of_another_device_is_refused() -> None:
    with says(ConfigError, "The endpoint cannot listen on 192.0.2.1:8674:"):
        bind("192.0.2.1", 8674)


async def test_signals_stay_the_programs_own() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with served():
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_an_error_has_the_form_of_its_path() -> None:
    error = RequestError(400, "The prompt has 9 tokens.", param="messages", code="context_length_exceeded")
    kind = {"type": "invalid_request_error", "message": "prompt is too long: The prompt has 9 tokens."}
    assert error.fields_at("/v1/messages") == {"type": "error", "error": kind}
    assert error.fields_at("/api/chat") == {"error": "The prompt has 9 tokens."}
    said = error.fields_at("/v1/chat/completions")["error"]
    assert said == kind | {"message": str(error), "param": "messages", "code": "context_length_exceeded"}
    kinds = {408: "invalid_request_error", 413: "request_too_large", 500: "api_error", 503: "overloaded_error"}
    assert {each: RequestError(each, "").anthropic_fields["error"]["type"] for each in kinds} == kinds
