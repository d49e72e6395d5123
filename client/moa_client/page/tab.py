"""One tab's WebSocket: messages in, of a bounded size, and messages out, each within a deadline.

State: whether the tab is cut off. Invariant: a tab that sleeps holds nothing up; it catches up when it connects again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from moa_shared.errors import DataError
from starlette.websockets import WebSocket, WebSocketDisconnect

from moa_client.surface.messages import MOST_QUESTION_BYTES, decode_request, error_fields
from moa_client.surface.update_codec import Fields

SEND_S = 20.0  # a tab that takes nothing in for so long sleeps, or its network is gone
CLOSE_S = 2.0
SUBPROTOCOL = "moa"  # that a page offers beside its key
FOREIGN = 1008  # RFC 6455: what came breaks a rule
TOO_BIG = 1009
TRY_AGAIN = 1013
GONE = (TimeoutError, OSError, WebSocketDisconnect, RuntimeError)  # RuntimeError: it is closed already


class Tab:
    """A tab that is connected.

    Args:
        websocket: not accepted yet.
        send_s: a tab that takes no message in for so long is cut off.
    """

    def __init__(self, websocket: WebSocket, send_s: float = SEND_S) -> None:
        self._websocket = websocket
        self._send_s = send_s
        self._turn = asyncio.Lock()  # answers to requests go between updates, not into them
        self._is_cut_off = asyncio.Event()

    async def accept(self) -> None:
        """Begins."""
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
        """Ends the connection."""
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
