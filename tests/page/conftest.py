"""A browser, and the page with a fake daemon behind it."""

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.page.fake_daemon import Script
from tests.page.served import Reader, ServedPage
from tests.support.skipping import cannot_run

PATIENCE_MS = 60_000  # a busy machine is not a defect
# uvicorn says it of a tab that left before it could be refused.
LEFT_FIRST = "ASGI callable returned without completing handshake."
# The first is Chromium without windows, which takes a third of the processor's time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
Serve = Callable[..., ServedPage]
Open = Callable[..., Reader]
Ask = Callable[[Script, str], Reader]


@pytest.hookimpl(tryfirst=True)  # before modules get groups of their own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests with a browser run on one worker."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium as it is installed; Playwright's event loop ends with the module, for asynchronous tests after it."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        cannot_run("there is no Chromium (Debian: apt-get install chromium-headless-shell)")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def serve(caplog: pytest.LogCaptureFixture) -> Iterator[Serve]:
    """Serves the page with a fake daemon that plays this script; an error that it logs fails the test."""
    with ExitStack() as pages:
        yield lambda script, key="": pages.enter_context(closing(ServedPage(script, key)))
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert [message for message in told if message != LEFT_FIRST] == []


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Open]:
    """Opens the page in a tab of its own, with the panel; whatever goes wrong in it fails the test."""
    readers: list[Reader] = []

    def open_page(served: ServedPage, address: str = "/", **options: object) -> Reader:
        options = {"viewport": {"width": 1280, "height": 800}, **options}
        context = contexts.enter_context(browser.new_context(**options))  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.add_init_script("localStorage.setItem('moa.panel', 'open')")
        readers.append(Reader(context.new_page(), served))
        readers[-1].go(address)
        return readers[-1]

    with ExitStack() as contexts:
        yield open_page
    assert [complaint for reader in readers for complaint in reader.complaints] == []


@pytest.fixture
def ask(serve: Serve, open_page: Open) -> Ask:
    """A tab of a daemon that plays a script, and a question that was asked there."""

    def ask(script: Script, question: str) -> Reader:
        reader = open_page(serve(script))
        reader.ask(question)
        return reader

    return ask
