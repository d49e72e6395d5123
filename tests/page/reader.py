"""One who reads the page, and what it shows."""

from __future__ import annotations

import logging

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import ConsoleMessage, Locator, Page, expect

from tests.page.served import ServedPage

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
