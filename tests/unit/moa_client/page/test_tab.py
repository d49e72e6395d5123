"""One tab's WebSocket, over a transport that a test plays."""

import asyncio
from typing import Any

from moa_client.page.routes import TRY_AGAIN, Tab
from starlette.websockets import WebSocket


class Transport:
    """What was sent to a browser that says nothing."""

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
