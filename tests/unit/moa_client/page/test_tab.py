"""One tab's WebSocket, over a transport that a test plays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from inline_snapshot import snapshot
from moa_client.page.routes import TOO_BIG, Tab, is_own
from moa_client.surface.messages import MOST_QUESTION_BYTES
from starlette.websockets import WebSocket

SCOPE: dict[str, Any] = {"type": "websocket", "subprotocols": ["moa", "moa.key.secret"], "headers": []}


class Transport:
    """What a browser sends, and what was sent to it."""

    def __init__(self, *texts: str) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.is_asleep = False
        self.incoming.put_nowait({"type": "websocket.connect"})
        for text in texts:
            self.incoming.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        self.incoming.put_nowait({"type": "websocket.disconnect", "code": 1001})

    async def receive(self) -> dict[str, Any]:
        return await self.incoming.get()

    async def send(self, message: Any) -> None:
        if self.is_asleep:
            await asyncio.Event().wait()
        self.sent.append(message)

    @asynccontextmanager
    async def tab(self, send_s: float = 20.0) -> AsyncIterator[Tab]:
        tab = Tab(WebSocket(SCOPE, self.receive, self.send), send_s)
        await tab.accept()
        yield tab


async def test_messages_until_the_tab_goes() -> None:
    transport = Transport('{"do": "stop"}', '{"do": "stats"}')
    transport.leave()
    async with transport.tab() as tab:
        assert [message["do"] async for message in tab.messages()] == ["stop", "stats"]
    assert transport.sent[0] == {"type": "websocket.accept", "subprotocol": "moa", "headers": []}


async def test_what_is_no_message_is_answered() -> None:
    transport = Transport("nonsense", '{"do": "stop"}')
    transport.leave()
    async with transport.tab() as tab:
        assert [message["do"] async for message in tab.messages()] == ["stop"]
    error = json.loads(transport.sent[1]["text"])
    assert error["message"] == snapshot("The message cannot be read: Expecting value: line 1 column 1 (char 0).")


async def test_a_message_that_is_too_long_is_the_last() -> None:
    transport = Transport(json.dumps({"do": "x" * MOST_QUESTION_BYTES}), '{"do": "stop"}')
    async with transport.tab() as tab:
        assert [message async for message in tab.messages()] == []
    assert transport.sent[1]["code"] == TOO_BIG


async def test_a_tab_that_takes_nothing_in_is_cut_off_while_it_says_nothing_either() -> None:
    transport = Transport()
    async with transport.tab(send_s=0.01) as tab:
        transport.is_asleep = True
        reading = asyncio.create_task(anext(tab.messages(), None))
        await tab.send({"event": "committed"})
        assert await reading is None
        transport.is_asleep = False
        await tab.send({"event": "ended"})
    assert [message["type"] for message in transport.sent] == ["websocket.accept"]


def test_only_the_host_that_was_asked_is_an_own_origin() -> None:
    def origin(host: str, origin: str | None) -> bool:
        headers = [(b"host", host.encode())] + ([(b"origin", origin.encode())] if origin is not None else [])
        return is_own(WebSocket({**SCOPE, "headers": headers}, Transport().receive, Transport().send))

    assert origin("localhost:8674", None)
    assert origin("localhost:8674", "http://localhost:8674")
    assert not origin("localhost:8674", "http://localhost:8675")
    assert not origin("localhost:8674", "https://elsewhere.example")
    assert not origin("localhost:8674", "null")
    assert not origin("localhost:8674", "http://[")
