"""One tab's WebSocket, over a transport that a test plays."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from moa_client.page.routes import TOO_BIG, TRY_AGAIN, Tab
from moa_client.surface.messages import MOST_QUESTION_BYTES
from starlette.websockets import WebSocket


class Transport:
    """What a browser sends, and what was sent to it."""

    def __init__(self, *texts: str) -> None:
        self.incoming = [
            {"type": "websocket.connect"},
            *({"type": "websocket.receive", "text": text} for text in texts),
        ]
        self.sent: list[dict[str, Any]] = []
        self.is_asleep = False
        scope = {"type": "websocket", "subprotocols": ["moa", "moa.key.secret"], "headers": []}
        self.tab = Tab(WebSocket(scope, self.receive, self.send), send_s=0.01)

    async def receive(self) -> dict[str, Any]:
        if not self.incoming:
            await asyncio.Event().wait()
        return self.incoming.pop(0)

    async def send(self, message: Any) -> None:
        if self.is_asleep and message["type"] == "websocket.send":
            await asyncio.Event().wait()
        self.sent.append(message)


async def test_a_message_that_is_too_long_is_the_last() -> None:
    transport = Transport('{"do": "stats"}', json.dumps({"do": "x" * MOST_QUESTION_BYTES}), '{"do": "stop"}')
    read: list[object] = []

    async def serve(tab: Tab) -> None:
        read.extend([message["do"] async for message in tab.messages()])

    await transport.tab.serve(serve)
    assert read == ["stats"]
    assert transport.sent[0] == {"type": "websocket.accept", "subprotocol": "moa", "headers": []}
    assert transport.sent[1]["code"] == TOO_BIG


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
    assert [message.get("code") for message in transport.sent] == [None, TRY_AGAIN]
