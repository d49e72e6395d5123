"""The page's routes: files, two WebSockets (a conversation, and what crosses the link), and what it asks of the daemon.

Messages in are of a bounded size, messages out have a deadline each: a tab that sleeps holds nothing up, and catches up
when it connects again. Invariant: a conversation is left, and a watch ended, however the tab goes.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import ConfigError, ConflictError, DataError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.websockets import WebSocket, WebSocketDisconnect

from moa_client.history.reading import Summary
from moa_client.host.surface_session import Watch, serve_surface
from moa_client.link.stream import FRAME_OVERHEAD_BYTES, Frame, Observer, Way
from moa_client.surface.messages import MOST_QUESTION_BYTES, Fields, decode_request, error_fields
from moa_client.web.access import PAGE, SUBPROTOCOL, RequestError

ExportForm = Literal["markdown", "json"]
EXPORT_TYPES: dict[ExportForm, tuple[str, str]] = {  # the type of its content, and how its file's name ends
    "markdown": ("text/markdown; charset=utf-8", "md"),
    "json": ("application/json", "json"),
}

MOST_UNREAD = 2048  # messages: ten seconds of a busy link
KINDS = ("draft", "ask", "beat", "ack", "verdict", "memory", "opened")


@dataclass(frozen=True, slots=True)
class Crossing:
    """A message that has crossed the link.

    Args:
        t: when it was sent (up) or had arrived (down), in milliseconds on the clock of all such messages.
        tokens: drafted, or committed by a verdict; `accepted`: of the latter, how many this device had drafted.
        server_accepted: how many only the server had drafted.
        conversation: its identifier; empty: it is not kept.
    """

    t: float
    way: Way
    kind: str
    bytes: int
    tokens: int = 0
    accepted: int = 0
    conversation: str = ""
    server_accepted: int = 0


class FrameTap:
    """Tells those who watch what crosses the link; one who lags loses the oldest: it is a picture, not a record."""

    def __init__(self) -> None:
        self._watchers: list[asyncio.Queue[Crossing]] = []

    def observer(self, conversation: str) -> Observer:
        def observe(way: Way, frame: Frame) -> None:
            for unread in self._watchers:
                if unread.qsize() >= MOST_UNREAD:
                    unread.get_nowait()
                unread.put_nowait(_crossing(way, frame, conversation))

        return observe

    async def watch(self) -> AsyncIterator[Crossing]:
        unread: asyncio.Queue[Crossing] = asyncio.Queue()
        self._watchers.append(unread)
        try:
            while True:
                yield await unread.get()
        finally:
            self._watchers.remove(unread)


def _crossing(way: Way, frame: Frame, conversation: str) -> Crossing:
    kind = frame.WhichOneof("frame") or "other"
    tokens = accepted = server_accepted = 0
    if isinstance(frame, pb.ClientFrame) and kind == "draft":
        tokens = len(frame.draft.tokens)
    elif isinstance(frame, pb.ServerFrame) and kind == "verdict":
        tokens = len(frame.verdict.tokens)
        server_accepted = frame.verdict.server_accepted
        accepted = frame.verdict.accepted - server_accepted
    size = frame.ByteSize() + FRAME_OVERHEAD_BYTES
    known = kind if kind in KINDS else "other"
    return Crossing(1e3 * time.monotonic(), way, known, size, tokens, accepted, conversation, server_accepted)


class PageBackend(Protocol):
    """What the page is shown, and what it may ask for. Methods raise `MoaError` where they are refused."""

    # Opens a conversation that is kept, or begins one; for one answer or more.
    async def open(self, identifier: str | None, system: str | None, single: bool) -> Watch: ...
    # The device and its link, apart from any conversation, and `wants_online`: the user's wish for all conversations.
    def status(self) -> Fields: ...
    # Those that have the words; all without any. The newest first.
    async def conversations(self, search: str) -> Sequence[Summary]: ...
    async def delete(self, identifier: str) -> None: ...

    async def export(self, identifier: str, form: ExportForm) -> str: ...

    # The user's wish for all conversations: to continue without the server, or with it again.
    def set_offline(self, is_offline: bool) -> None: ...
    # What crosses the link from now on.
    def timeline(self) -> AsyncIterator[Crossing]: ...


SEND_S = 20.0  # a tab that takes nothing in for so long sleeps, or its network is gone
CLOSE_S = 2.0
TOO_BIG = 1009  # RFC 6455
TRY_AGAIN = 1013
GONE = (TimeoutError, OSError, WebSocketDisconnect, RuntimeError)  # RuntimeError: it is closed already


class Tab:
    """A tab that is connected. `send_s`: a tab that takes no message in for so long is cut off."""

    def __init__(self, websocket: WebSocket, send_s: float = SEND_S) -> None:
        self._websocket = websocket
        self._send_s = send_s
        self._turn = asyncio.Lock()  # answers to requests go between updates, not into them
        self._until = asyncio.timeout(None)

    async def serve(self, serve: Callable[[Tab], Awaitable[None]]) -> None:
        """Serves it until it goes or is cut off."""
        offered = self._websocket.scope.get("subprotocols", [])
        await self._websocket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None)
        try:
            with suppress(TimeoutError):
                async with self._until:
                    await serve(self)
        finally:
            await self._close(TRY_AGAIN)  # it knows that it may connect again

    async def send(self, message: Mapping[str, Any]) -> None:
        """Sends one message; a tab that has gone, or takes nothing in, is cut off."""
        text = json.dumps(message)
        try:
            async with asyncio.timeout(self._send_s), self._turn:
                await self._websocket.send_text(text)
        except GONE:
            self.cut_off()

    async def messages(self) -> AsyncGenerator[Fields, None]:
        """What it asks for, until it goes. What is no message is answered here."""
        while (received := await self._websocket.receive())["type"] != "websocket.disconnect":
            text = received.get("text") or ""
            if len(text) > MOST_QUESTION_BYTES:
                await self._close(TOO_BIG)
                return
            try:
                yield decode_request(text)
            except DataError as error:
                await self.send(error_fields(error))

    def cut_off(self) -> None:
        with suppress(RuntimeError):  # it is over already
            self._until.reschedule(0)

    async def _close(self, code: int) -> None:
        with suppress(*GONE):
            async with asyncio.timeout(CLOSE_S):
                await self._websocket.close(code)


async def _converse(tab: Tab, backend: PageBackend) -> None:
    async with aclosing(tab.messages()) as messages:
        await serve_surface(messages, tab.send, backend.open)


async def _show_crossings(tab: Tab, backend: PageBackend) -> None:
    """What crosses the link, one message for each message there."""

    async def show() -> None:
        async for crossing in backend.timeline():
            await tab.send(asdict(crossing))

    showing = asyncio.create_task(show())
    try:
        async for _ in tab.messages():
            pass  # it has nothing to ask here
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


# Scripts and styles from here alone, no HTML from strings at all (trusted types), no frame around the page.
POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
SECURITY = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), clipboard-write=(self)",
}
HEADERS = {**SECURITY, "cache-control": "no-store"}
MOST_SEARCHED = 200  # characters
mimetypes.add_type("text/javascript", ".js")  # whatever this system says: browsers run nothing else


class PageFiles(StaticFiles):
    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers.update({**SECURITY, "cache-control": "no-cache"})
        return response


def page_routes(backend: PageBackend) -> list[BaseRoute]:
    """All routes of the page, for an application that shows errors of the catalogue (`make_app`)."""
    files = PageFiles(directory=Path(__file__).parent / "static")

    async def index(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    async def converse(websocket: WebSocket) -> None:
        await Tab(websocket).serve(lambda tab: _converse(tab, backend))

    async def show_crossings(websocket: WebSocket) -> None:
        await Tab(websocket).serve(lambda tab: _show_crossings(tab, backend))

    async def status(request: Request) -> Response:
        return JSONResponse(backend.status(), 200, HEADERS)

    async def conversations(request: Request) -> Response:
        found = await backend.conversations(request.query_params.get("search", "")[:MOST_SEARCHED])
        names = ("title", "updated", "model", "answers", "unverified")
        shown = [{"id": each.identifier, **{name: getattr(each, name) for name in names}} for each in found]
        return JSONResponse({"conversations": shown}, 200, HEADERS)

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
        form = request.query_params.get("format", "markdown")
        if form not in EXPORT_TYPES:
            raise ConfigError(f"There is no export as {form[:40]!r}.", hint="Use format=markdown or format=json.")
        content_type, ending = EXPORT_TYPES[form]
        text = await backend.export(request.path_params["id"], form)
        name = re.sub(r"[^\w-]", "", request.path_params["id"], flags=re.ASCII)[:64]
        disposition = f'attachment; filename="conversation-{name}.{ending}"'
        return Response(text, 200, {**HEADERS, "content-disposition": disposition}, content_type)

    async def wish(request: Request) -> Response:
        backend.set_offline(request.url.path.endswith("/offline"))
        return await status(request)

    own = f"{PAGE}v1"
    return [
        Route("/", index),
        Mount("/page", files),
        WebSocketRoute(f"{own}/conversation", converse),
        WebSocketRoute(f"{own}/timeline", show_crossings),
        Route(f"{own}/status", status),
        Route(f"{own}/conversations", conversations),
        Route(f"{own}/conversations/{{id}}", conversation, methods=["GET", "DELETE"]),
        Route(f"{own}/conversations/{{id}}/export", export),
        Route(f"{own}/offline", wish, methods=["POST"]),
        Route(f"{own}/online", wish, methods=["POST"]),
    ]
