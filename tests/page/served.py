"""Serves the page with a fake daemon in a thread of its own, which a test can kill and start again; and reads it."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from anyio.from_thread import start_blocking_portal
from axe_playwright_python.base import AXE_SCRIPT
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.options import AnswerOptions
from moa_client.page.routes import page_routes
from moa_client.web.access import Access
from moa_client.web.server import WebServer, bind, make_app, serve
from moa_shared.protocol.messages import Finish
from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from tests.page.fake_daemon import FakeBackend, Script


class ServedPage:
    """The page at `url`. `key`: that requests must show. `call`: does something on the loop of the daemon."""

    def __init__(self, script: Script, key: str = "") -> None:
        self._key = key
        self._portal = start_blocking_portal()
        self.call = self._portal.__enter__().call
        self.backend = FakeBackend(script)
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
        return self.backend.open_conversations["c001"].requests

    def remember(self, identifier: str, title: str, turns: Sequence[tuple[str, str]], age_s: float = 0.0) -> None:
        """Has a conversation of before."""
        talk = self.call(self.backend.begin, identifier, title, None, time.time() - age_s)
        for number, (question, text) in enumerate(turns, 1):
            kept = AnswerText(question, number, finish=Finish.END_OF_TEXT, committed=text, is_running=False)
            talk.answers.append(kept)

    def open_gate(self, name: str = "on") -> None:
        """Lets the script go on that waits there."""
        self.call(lambda: self.backend.gates[name].set())

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for the daemon."""

        async def wait() -> None:
            async with asyncio.timeout(100):
                while not condition():  # noqa: ASYNC110 (the condition may be anything)
                    await asyncio.sleep(0.01)

        self.call(wait)

    def start(self) -> None:
        """Serves, at the port of before if there was one."""

        async def start() -> WebServer:
            listener = bind("127.0.0.1", self.port)
            self.port = listener.getsockname()[1]
            access = Access("127.0.0.1", self.port, key=self._key)
            return await serve(make_app(page_routes(self.backend), access), listener, asyncio.Event(), access)

        self._server = self.call(start)

    def kill(self) -> None:
        """All connections break, and nobody listens."""

        async def kill() -> None:
            self._server._doors.close()
            await self._server.close()

        self.call(kill)

    def close(self) -> None:
        """Ends the daemon."""
        self.kill()
        for conversation in self.backend.open_conversations.values():
            self.call(conversation.running.cancel)
        self._portal.__exit__(None, None, None)


logger = logging.getLogger(__name__)
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

    def note(self, selector: str) -> Callable[[], list[str]]:
        """Notes the text of what appears there from now on, however short; the call gives it."""
        self.page.evaluate(
            """selector => {
              window.noted = [];
              const note = () => noted.push(...[...document.querySelectorAll(selector)].map((each) => each.textContent));
              new MutationObserver(note).observe(document.body, { childList: true, subtree: true, attributes: true });
            }""",
            selector,
        )
        return lambda: list(self.page.evaluate("noted"))

    def violations(self) -> list[str]:
        """What axe finds."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE_SCRIPT)
        found = self.page.evaluate("axe.run({ resultTypes: ['violations'] }).then(({ violations }) => violations)")
        return [f"{each['id']}: {node['html'][:120]}" for each in found for node in each["nodes"]]

    def _listen(self, message: ConsoleMessage) -> None:
        logger.warning("the browser's log: %s", message.text)
        if message.type == "error" and not message.text.startswith(NETWORK):
            self.complaints.append(message.text)
