"""The page's two WebSockets: one has a conversation open, the other shows what crosses the link.

State: none outside a connection. Invariant: a conversation is left, and a watch ended, however the tab goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import asdict

from moa_shared.errors import DataError, MoaError
from starlette.websockets import WebSocket

from moa_client.failures import told
from moa_client.host.frame_tap import Crossing
from moa_client.page.backend import PageBackend
from moa_client.page.origin import is_own
from moa_client.page.tab import FOREIGN, TRY_AGAIN, Tab
from moa_client.surface.messages import error_fields
from moa_client.surface.surface_session import serve_surface

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
