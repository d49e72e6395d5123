"""The page's routes: files, two WebSockets (a conversation, and what crosses the link), and what it asks of the daemon.

Messages in are of a bounded size, messages out have a deadline each: a tab that sleeps holds nothing up, and catches up
when it connects again. Invariant: a conversation is left, and a watch ended, however the tab goes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from moa_shared.errors import ConfigError, ConflictError, DataError, MoaError
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from moa_client.failures import told
from moa_client.host.host import Crossing
from moa_client.host.surface_session import Watch, serve_surface
from moa_client.surface.messages import MOST_QUESTION_BYTES, Fields, decode_request, error_fields
from moa_client.web.error_form import RequestError

ExportForm = Literal["markdown", "json"]
EXPORT_TYPES: dict[ExportForm, tuple[str, str]] = {  # the type of its content, and how its file's name ends
    "markdown": ("text/markdown; charset=utf-8", "md"),
    "json": ("application/json", "json"),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation in the list.

    Args:
        updated: in seconds since 1970.
        unverified: answers that ended without the server, which has not decided them yet.
    """

    id: str
    title: str
    updated: float
    model: str
    answers: int
    unverified: int


class PageBackend(Protocol):
    """What the page is shown, and what it may ask for. Methods raise `MoaError` where they are refused."""

    # Opens a conversation that is kept, or begins one; for one answer or more.
    async def open(self, identifier: str | None, system: str | None, single: bool) -> Watch: ...
    # The device and its link, apart from any conversation. Returns: version, phase, target, server, state, reason,
    # rtt_ms, drafter, standalone, level, exact, conversations, since, and `wants_online`: the user's wish for all
    # conversations.
    def status(self) -> Fields: ...
    # Those that have the words; all without any. The newest first.
    async def conversations(self, search: str) -> Sequence[Kept]: ...
    async def delete(self, identifier: str) -> None: ...

    async def export(self, identifier: str, form: ExportForm) -> str: ...

    # The user's wish for all conversations: to continue without the server, or with it again.
    def set_offline(self, is_offline: bool) -> None: ...
    # What crosses the link from now on; leaves the oldest out for a reader that lags.
    def timeline(self) -> AsyncIterator[Crossing]: ...


def is_own(connection: HTTPConnection) -> bool:
    """Whether the request's origin, if it names one, is the host that it was sent to."""
    origin = connection.headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == connection.headers.get("host", "").lower() != ""
    except ValueError:
        return False


SEND_S = 20.0  # a tab that takes nothing in for so long sleeps, or its network is gone
CLOSE_S = 2.0
SUBPROTOCOL = "moa"  # that a page offers beside its key
FOREIGN = 1008  # RFC 6455: what came breaks a rule
TOO_BIG = 1009
TRY_AGAIN = 1013
GONE = (TimeoutError, OSError, WebSocketDisconnect, RuntimeError)  # RuntimeError: it is closed already


class Tab:
    """A tab that is connected. `send_s`: a tab that takes no message in for so long is cut off."""

    def __init__(self, websocket: WebSocket, send_s: float = SEND_S) -> None:
        self._websocket = websocket
        self._send_s = send_s
        self._turn = asyncio.Lock()  # answers to requests go between updates, not into them
        self._is_cut_off = asyncio.Event()

    async def accept(self) -> None:
        offered = self._websocket.scope.get("subprotocols", [])
        await self._websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)

    async def send(self, message: Mapping[str, Any]) -> None:
        """Sends one message, unless the tab has gone; one that takes nothing in is cut off."""
        if self._is_cut_off.is_set():
            return
        text = json.dumps(message)
        try:
            async with asyncio.timeout(self._send_s), self._turn:
                await self._websocket.send_text(text)
        except GONE:
            self.cut_off()

    async def messages(self) -> AsyncGenerator[Fields, None]:
        """What it asks for, until it goes or is cut off. What is no message is answered here."""
        while (text := await self._receive()) is not None:
            if len(text) > MOST_QUESTION_BYTES:
                await self.close(TOO_BIG)
                return
            try:
                yield decode_request(text)
            except DataError as error:
                await self.send(error_fields(error))

    def cut_off(self) -> None:
        """Ends `messages`; nothing is sent any more."""
        self._is_cut_off.set()

    async def close(self, code: int) -> None:
        with suppress(*GONE):
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code)

    async def _receive(self) -> str | None:
        """The next text; empty for what is none. None: the tab has gone."""
        receiving = asyncio.ensure_future(self._websocket.receive())
        cut_off = asyncio.ensure_future(self._is_cut_off.wait())
        try:
            await asyncio.wait((receiving, cut_off), return_when=asyncio.FIRST_COMPLETED)
            if cut_off.done() or receiving.result()["type"] == "websocket.disconnect":
                return None
            return receiving.result().get("text") or ""
        finally:
            receiving.cancel()
            cut_off.cancel()
            await asyncio.gather(receiving, cut_off, return_exceptions=True)


Endpoint = Callable[[WebSocket], Awaitable[None]]


def conversation_endpoint(backend: PageBackend) -> Endpoint:
    """One conversation: the messages of docs/device.md."""

    async def converse(tab: Tab) -> None:
        async with aclosing(tab.messages()) as messages:
            async for message in messages:
                try:
                    if message.get("do") != "open":
                        raise DataError("The first message must open a conversation.", hint="Reload the page.")
                    await serve_surface(message, messages, tab.send, backend.open)
                    return
                except BaseException as error:  # noqa: BLE001 (a defect, too, is told)
                    await tab.send(error_fields(told(error, "What was asked for")))

    return _endpoint(converse)


def timeline_endpoint(backend: PageBackend) -> Endpoint:
    """What crosses the link, one message for each message there."""

    async def show(tab: Tab) -> None:
        showing = asyncio.create_task(_show(backend.timeline(), tab))
        try:
            async for _ in tab.messages():
                pass  # it has nothing to ask here
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    return _endpoint(show)


def _endpoint(serve: Callable[[Tab], Awaitable[None]]) -> Endpoint:
    async def endpoint(websocket: WebSocket) -> None:
        tab = Tab(websocket)
        if not is_own(websocket):
            await tab.close(FOREIGN)
            return
        await tab.accept()
        try:
            await serve(tab)
        finally:
            await tab.close(TRY_AGAIN)  # it knows that it may connect again

    return endpoint


async def _show(crossings: AsyncIterator[Crossing], tab: Tab) -> None:
    try:
        async for crossing in crossings:
            await tab.send(asdict(crossing))
    except MoaError:
        tab.cut_off()  # the daemon has not started yet: the tab tries again


TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "txt": "text/plain; charset=utf-8",
}
# Scripts and styles from here alone, no HTML from strings at all (trusted types), no frame around the page.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), clipboard-write=(self)",
}


class StaticFiles:
    """All files below the folder `static`, by their path there."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        folder = Path(__file__).parent / "static"
        for path in folder.rglob("*"):
            if (kind := TYPES.get(path.suffix[1:])) is not None:
                content = path.read_bytes()
                tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                self._files[path.relative_to(folder).as_posix()] = content, kind, tag

    async def index(self, request: Request) -> Response:
        return self._respond(request, "index.html")

    async def file(self, request: Request) -> Response:
        return self._respond(request, request.path_params["path"])

    def _respond(self, request: Request, path: str) -> Response:
        found = self._files.get(path)
        if found is None:
            return PlainTextResponse("There is no such file in the page.\n", 404, SECURITY)
        content, kind, tag = found
        headers = {**SECURITY, "etag": tag, "cache-control": "no-cache", "content-type": kind}
        if tag in (each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")):
            return Response(None, 304, headers)
        return Response(content, 200, headers)


MOST_SEARCHED = 200  # characters
HEADERS = {**SECURITY, "cache-control": "no-store"}
Handler = Callable[[Request], Awaitable[Response]]


def page_routes(backend: PageBackend) -> list[BaseRoute]:
    """All routes of the page, for an application that shows errors of the catalogue (`make_app`)."""
    static = StaticFiles()

    async def status(request: Request) -> Response:
        return _json(backend.status())

    async def conversations(request: Request) -> Response:
        kept = await backend.conversations(request.query_params.get("search", "")[:MOST_SEARCHED])
        return _json({"conversations": [asdict(each) for each in kept]})

    async def conversation(request: Request) -> Response:
        identifier = request.path_params["id"]
        if request.method == "DELETE":
            try:
                await backend.delete(identifier)
            except ConflictError as error:
                raise RequestError(409, str(error), code=error.code) from error
            return Response(None, 204, HEADERS)
        return Response(await backend.export(identifier, "json"), 200, HEADERS, EXPORT_TYPES["json"][0])

    async def export(request: Request) -> Response:
        form = _form(request.query_params.get("format", "markdown"))
        content_type, ending = EXPORT_TYPES[form]
        text = await backend.export(request.path_params["id"], form)
        name = re.sub(r"[^\w-]", "", request.path_params["id"], flags=re.ASCII)[:64]
        disposition = f'attachment; filename="conversation-{name}.{ending}"'
        return Response(text, 200, {**HEADERS, "content-disposition": disposition}, content_type)

    async def wish(request: Request) -> Response:
        backend.set_offline(request.url.path.endswith("/offline"))
        return _json(backend.status())

    return [
        Route("/", static.index),
        Route("/page/{path:path}", static.file),
        WebSocketRoute("/moa/v1/conversation", conversation_endpoint(backend)),
        WebSocketRoute("/moa/v1/timeline", timeline_endpoint(backend)),
        Route("/moa/v1/status", _own(status)),
        Route("/moa/v1/conversations", _own(conversations)),
        Route("/moa/v1/conversations/{id}", _own(conversation), methods=["GET", "DELETE"]),
        Route("/moa/v1/conversations/{id}/export", _own(export)),
        Route("/moa/v1/offline", _own(wish), methods=["POST"]),
        Route("/moa/v1/online", _own(wish), methods=["POST"]),
    ]


def _own(handler: Handler) -> Handler:
    """Refuses requests of other sites' pages, also of those that may use the endpoint."""

    async def guarded(request: Request) -> Response:
        if not is_own(request):
            raise RequestError(403, "Another site's page has sent this request: conversations are for moa's own page.")
        return await handler(request)

    return guarded


def _form(name: str) -> ExportForm:
    if name not in EXPORT_TYPES:
        raise ConfigError(f"There is no export as {name[:40]!r}.", hint="Use format=markdown or format=json.")
    return name


def _json(content: object) -> Response:
    return JSONResponse(content, 200, HEADERS)
