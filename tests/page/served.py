"""Serves the page with a fake daemon in a thread of its own, which a test can kill and start again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import uvicorn
from axe_playwright_python.base import AXE_SCRIPT
from moa_client.page.routes import page_routes
from moa_client.web.access import Access
from moa_client.web.server import WebServer, bind, make_app, serve
from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from tests.page.fake_backend import FakeBackend, Script

T = TypeVar("T")


class ServedPage:
    """The page at `url`.

    Args:
        port: 0: any.
        key: that requests must show.
    """

    def __init__(self, scripts: Mapping[str, Script], port: int = 0, key: str = "") -> None:
        self._key = key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.backend = self.call(lambda: FakeBackend(scripts))
        self._server: WebServer | None = None
        self.port = port
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, action: Callable[[], T]) -> T:
        """Does something on the loop of the daemon."""

        async def run() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def open_gate(self, name: str) -> None:
        """Lets the script go on that waits there."""
        self.call(lambda: self.backend.gates.open(name))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for the daemon."""

        async def wait() -> None:
            while not condition():  # noqa: ASYNC110 (the condition may be anything)
                await asyncio.sleep(0.01)

        asyncio.run_coroutine_threadsafe(asyncio.wait_for(wait(), 30), self._loop).result(40)

    def start(self) -> None:
        """Serves, at the port of before if there was one."""
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)

    def kill(self) -> None:
        """All connections break, and nobody listens."""
        asyncio.run_coroutine_threadsafe(self._kill(), self._loop).result(10)

    def close(self) -> None:
        """Ends the daemon."""
        self.kill()
        asyncio.run_coroutine_threadsafe(self._close_conversations(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        listener = bind("127.0.0.1", self.port)
        self.port = listener.getsockname()[1]
        access = Access("127.0.0.1", self.port, key=self._key)
        self._server = await serve(make_app(page_routes(self.backend), access), listener, asyncio.Event(), access)

    async def _kill(self) -> None:
        if self._server is not None:
            server: uvicorn.Server = self._server._server
            for connection in list(server.server_state.connections):
                with suppress(AttributeError):
                    connection.transport.abort()
            await self._server.close()
            self._server = None

    async def _close_conversations(self) -> None:
        for conversation in self.backend.open_conversations.values():
            await conversation.close()


logger = logging.getLogger(__name__)
AXE_RUN = "axe.run({ resultTypes: ['violations'] }).then(({ violations }) => violations)"
NETWORK = ("Failed to load resource", "WebSocket connection")  # what the browser says of a daemon that is gone


class Reader:
    """A tab.

    Attributes:
        complaints: errors of the page's own scripts.
    """

    def __init__(self, page: Page, served: ServedPage) -> None:
        self.page = page
        self.served = served
        self.complaints: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._listen)
        # pytest shows it where a test fails: a page that lacks one of its scripts says nothing itself.
        page.on("requestfailed", lambda request: logger.warning("%s failed: %s", request.url, request.failure))

    @property
    def field(self) -> Locator:
        return self.page.get_by_role("textbox", name="Question", exact=True)

    @property
    def turns(self) -> Locator:
        return self.page.locator(".turn")

    @property
    def answer(self) -> Locator:
        """The newest."""
        return self.page.locator(".turn .answer").last

    @property
    def standing(self) -> Locator:
        """What is said below it."""
        return self.page.locator(".turn .standing-words").last

    @property
    def notice(self) -> Locator:
        return self.page.locator("#notice-text")

    @property
    def provisional(self) -> Locator:
        return self.page.locator(".turn .provisional")

    @property
    def conversations(self) -> Locator:
        return self.page.locator("#conversations .conversation-title")

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)

    def go(self, address: str) -> None:
        """Opens an address of the page, and waits until it is connected."""
        self.page.goto(self.served.url + address)
        self.expect_connection("open")

    def expect_connection(self, state: str) -> None:
        expect(self.page.locator("#app")).to_have_attribute("data-connection", state)

    def ask(self, question: str) -> None:
        """Types a question and sends it."""
        self.field.fill(question)
        self.field.press("Enter")

    def expect_end(self, answers: int = 1) -> None:
        """Waits until so many answers are here and shown to their end, which the page may draw after it hides Stop."""
        expect(self.turns).to_have_count(answers)
        expect(self.button("Stop")).to_be_hidden()
        expect(self.page.locator('.turn[aria-busy="true"]')).to_have_count(0)

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def violations(self) -> list[str]:
        """What axe finds."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        found = self.page.evaluate(AXE_RUN)
        return [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]

    def _listen(self, message: ConsoleMessage) -> None:
        logger.warning("the browser's log: %s", message.text)
        if message.type == "error" and not message.text.startswith(NETWORK):
            self.complaints.append(message.text)
