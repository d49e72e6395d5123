"""Takes the pictures of docs/device.md, of scripted answers: python -m tests.page.pictures"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from tests.page.chromium import MISSING, find_chromium
from tests.page.demo import fill
from tests.page.scripts import SCRIPTS
from tests.page.served import ServedPage

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "img"
WIDE: ViewportSize = {"width": 1360, "height": 860}


def main() -> None:
    path = find_chromium()
    if path is None:
        raise SystemExit(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        for take in (take_light, take_cut, take_call, take_narrow):
            served = ServedPage(SCRIPTS)
            served.call(partial(fill, served.backend))
            try:
                name, page = take(browser, served)
                save(page, name)
            finally:
                served.close()
        browser.close()


def take_light(browser: Browser, served: ServedPage) -> tuple[str, Page]:
    """An answer over a good link, and what has crossed it."""
    page = open_wide(browser, served, "light")
    ask(page, "Write the Fibonacci numbers as a generator in Python.")
    expect(page.locator(".turn").nth(1).locator(".cost")).to_contain_text("tokens", timeout=30_000)
    page.get_by_role("button", name="Pause").click()
    page.locator("#timeline-ago").fill("0.6")  # while the answer was still coming
    page.get_by_text("0.3 s").click()
    return "page-light", page


def take_cut(browser: Browser, served: ServedPage) -> tuple[str, Page]:
    """The link is lost: the device has written on."""
    page = open_wide(browser, served, "dark")
    ask(page, "What does a lighthouse do?")
    page.get_by_text("10 s").click()
    expect(page.get_by_role("button", name="Write on anyway")).to_be_visible(timeout=30_000)
    return "page-cut", page


def take_call(browser: Browser, served: ServedPage) -> tuple[str, Page]:
    """A tool was called, another call waits; the answers are painted by their writers."""
    page = open_wide(browser, served, "light")
    page.get_by_role("radio", name="Writer").check(force=True)
    ask(page, "How is the weather in Lisbon?")
    page.get_by_role("button", name="Allow").click()
    page.get_by_text("Result, ").click()
    expect(page.locator(".turn").last.locator(".cost")).to_contain_text("tokens", timeout=30_000)
    ask(page, "And the weather at home?")
    expect(page.get_by_role("button", name="Allow")).to_be_visible(timeout=30_000)
    return "page-call", page


def take_narrow(browser: Browser, served: ServedPage) -> tuple[str, Page]:
    """On a telephone."""
    page = browser.new_page(viewport={"width": 390, "height": 780}, is_mobile=True, has_touch=True)
    page.goto(f"{served.url}/?c=tides")
    expect(page.locator(".turn")).to_be_visible()
    return "page-narrow", page


def open_wide(browser: Browser, served: ServedPage, scheme: Literal["light", "dark"]) -> Page:
    """The page on a desk, with its panel."""
    page = browser.new_page(viewport=WIDE, color_scheme=scheme)
    page.goto(f"{served.url}/?c=tides")
    page.locator("#chip").click()
    return page


def ask(page: Page, question: str) -> None:
    page.get_by_role("textbox", name="Question", exact=True).fill(question)
    page.keyboard.press("Enter")


def save(page: Page, name: str) -> None:
    """Writes a picture."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(600)  # until lists and figures show what has happened
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    print(f"{path.relative_to(FOLDER.parents[1])}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
