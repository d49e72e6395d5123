"""Serves the page with a fake daemon in a thread of its own, which a test can kill and start again; and reads it."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import uvicorn
from axe_playwright_python.base import AXE_SCRIPT
from moa_client.conversation.options import AnswerOptions
from moa_client.page.routes import page_routes
from moa_client.web.access import Access
from moa_client.web.server import WebServer, bind, make_app, serve
from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from tests.page.fake_daemon import FakeBackend, Script

T = TypeVar("T")


class ServedPage:
    """The page at `url`. `key`: that requests must show."""

    def __init__(self, scripts: Mapping[str, Script], key: str = "") -> None:
        self._key = key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.backend = self.call(lambda: FakeBackend(scripts))
        self._server: WebServer | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[tuple[str, AnswerOptions]]:
        """Of all conversations."""
        return self.call(lambda: [each for talk in self.backend.open_conversations.values() for each in talk.asked])

    @property
    def requests(self) -> list[str]:
        """What else was wanted of the first one."""
        return self.call(lambda: self.backend.open_conversations["c001"].requests)

    def call(self, action: Callable[[], T]) -> T:
        """Does something on the loop of the daemon."""

        async def run() -> T:
            return action()

        return self._run(run())

    def open_gate(self, name: str = "on") -> None:
        """Lets the script go on that waits there."""
        self.call(lambda: self.backend.gates[name].set())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for the daemon."""

        async def wait() -> None:
            while not condition():  # noqa: ASYNC110 (the condition may be anything)
                await asyncio.sleep(0.01)

        self._run(asyncio.wait_for(wait(), 30))

    def start(self) -> None:
        """Serves, at the port of before if there was one."""
        self._run(self._start())

    def kill(self) -> None:
        """All connections break, and nobody listens."""
        self._run(self._kill())

    def close(self) -> None:
        """Ends the daemon."""
        self.kill()
        self._run(self._close_conversations())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(40)

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
    """A tab. `complaints`: errors of the page's own scripts."""

    def __init__(self, page: Page, served: ServedPage) -> None:
        self.page = page
        self.served = served
        self.complaints: list[str] = []
        self.field = page.get_by_role("textbox", name="Question", exact=True)
        self.turns = page.locator(".turn")
        self.answer = page.locator(".turn .answer").last  # the newest
        self.standing = page.locator(".turn .standing-words").last  # what is said below it
        self.notice = page.locator("#notice-text")
        self.provisional = page.locator(".turn .provisional")
        self.conversations = page.locator("#conversations .conversation-title")
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", self._listen)
        # pytest shows it where a test fails: a page that lacks one of its scripts says nothing itself.
        page.on("requestfailed", lambda request: logger.warning("%s failed: %s", request.url, request.failure))

    def open_gate(self, name: str = "on") -> None:
        self.served.open_gate(name)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name)

    def go(self, address: str) -> None:
        """Opens an address of the page, and waits until it is connected."""
        self.page.goto(self.served.url + address)
        self.expect_connection()

    def expect_connection(self) -> None:
        expect(self.page.locator("#app")).to_have_attribute("data-connection", "open")

    def ask(self, question: str) -> None:
        """Types a question and sends it."""
        self.field.fill(question)
        self.field.press("Enter")

    def expect_end(self, answers: int = 1) -> None:
        """Waits until so many answers are here and shown to their end, which the page may draw after it hides Stop."""
        expect(self.turns).to_have_count(answers)
        expect(self.button("Stop")).to_be_hidden()
        expect(self.page.locator('.turn[aria-busy="true"]')).to_have_count(0)

    def expect_answer(self, text: str, answers: int = 1) -> None:
        expect(self.answer).to_have_text(text)
        self.expect_end(answers)

    def edit(self, number: int, text: str) -> Locator:
        """Asks the question of a turn again, with another text; the turn."""
        turn = self.turns.nth(number)
        turn.hover()
        turn.get_by_role("button", name="Edit the question").click()
        field = turn.get_by_role("textbox", name="Question, to be asked again")
        field.fill(text)
        field.press("Enter")
        return turn

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
