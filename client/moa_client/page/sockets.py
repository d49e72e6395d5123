"""What the page needs from the daemon, and its two WebSockets: a conversation, and what crosses the link.

Messages in are of a bounded size, messages out have a deadline each: a tab that sleeps holds nothing up, and catches up
when it connects again. Invariant: a conversation is left, and a watch ended, however the tab goes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from moa_shared.errors import DataError, MoaError
from starlette.requests import HTTPConnection
from starlette.websockets import WebSocket, WebSocketDisconnect

from moa_client.failures import told
from moa_client.host.host import Crossing
from moa_client.surface.messages import MOST_QUESTION_BYTES, Fields, decode_request, error_fields
from moa_client.surface.open_conversation import OpenConversation
from moa_client.surface.surface_session import serve_surface

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
    async def open(self, identifier: str | None, system: str | None, single: bool) -> OpenConversation: ...
    # The device and its link, apart from any conversation. Returns: version, phase, target, server, state, reason,
    # rtt_ms, drafter, alone, level, exact, conversations, since, and `wants_online`: the user's wish for all
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
