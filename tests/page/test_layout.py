"""The page for everybody, in a browser: narrow and wide, light and dark, by keyboard, read aloud, from right to left."""

from collections.abc import Iterator

import pytest
from moa_client.conversation.events import LinkState
from playwright.sync_api import expect

from tests.page.conftest import Open, Serve
from tests.page.fake_daemon import FakeBackend, Stage
from tests.page.served import Reader, ServedPage

CODE = """A generator keeps only two numbers, however far it goes:

```python
def fibonacci() -> Iterator[int]:
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b
```

| call | result |
| --- | ---: |
| `islice(fibonacci(), 5)` | 0, 1, 1, 2, 3 |
| the 50th number | 7,778,742,049 |

> It never ends by itself; `islice` takes as **many** as are *wanted*."""


pytestmark = pytest.mark.long  # axe takes seconds a time

NARROW = {"width": 320, "height": 640}
ZOOMED = {"width": 320, "height": 256}  # what 400 % leaves of 1280 x 1024
LONG = "Averylongwordthatnobodywouldbreakbutthepagemust" * 4


async def script(stage: Stage, question: str) -> None:
    stage.commit(CODE)
    stage.link(LinkState.OFFLINE, "nothing has come from it for 0.2 s")
    stage.write(" And so on, and on.")
    stage.hold()
    await stage.gate("on")
    stage.link(LinkState.GOOD)
    stage.commit(" And so on, but not for ever.")


def fill(backend: FakeBackend) -> None:
    backend.remember("tides", "Two tides", [("Why are there two tides?", CODE)], 3600)
    backend.remember("ar", "", [("ما هي عاصمة مصر؟", "عاصمة مصر هي **القاهرة**.")], 60 * 3600)
    backend.remember("long", LONG, [(LONG, LONG)], 7200)


@pytest.fixture
def served(serve: Serve) -> ServedPage:
    served = serve(script)
    served.call(lambda: fill(served.backend))
    return served


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [{"width": 1360, "height": 800}, NARROW], ids=["wide", "narrow"])
def test_axe_finds_nothing(served: ServedPage, open_page: Open, scheme: str, viewport: dict[str, int]) -> None:
    reader = open_page(served, viewport=viewport, color_scheme=scheme)
    assert reader.violations() == []
    reader.ask("Write the Fibonacci numbers.")
    expect(reader.button("Write on anyway")).to_be_visible()
    assert reader.violations() == []
    served.open_gate()
    expect(reader.page.locator(".corrected").first).to_be_visible()
    assert reader.violations() == []
    reader.expect_end()
    served.kill()
    expect(reader.notice).to_contain_text("moa-client does not run")
    assert reader.violations() == []


def test_axe_finds_nothing_in_dialogs_and_drawers(served: ServedPage, open_page: Open) -> None:
    for viewport, scheme in (({"width": 1000, "height": 800}, "light"), (NARROW, "dark")):
        reader = open_page(served, "/?c=tides", viewport=viewport, color_scheme=scheme)
        for opener in ("Options of answers", "Rename, export or delete Two tides"):
            if opener.startswith("Rename") and viewport is NARROW:
                reader.button("Conversations").click()
                assert reader.violations() == []
            reader.button(opener).click()
            assert reader.violations() == []
            if opener.startswith("Rename"):
                reader.button("Delete …").click()
                assert reader.violations() == []
            reader.page.keyboard.press("Escape")
        if viewport is NARROW:
            reader.page.keyboard.press("Escape")
        reader.page.locator("#chip").click()
        expect(reader.page.get_by_role("complementary", name="The link")).to_be_visible()
        assert reader.violations() == []
        reader.page.keyboard.press("Escape")
        expect(reader.page.get_by_role("complementary", name="The link")).to_be_hidden()
        expect(reader.page.locator("#chip")).to_be_focused()


@pytest.mark.parametrize("viewport", [NARROW, ZOOMED], ids=["narrow", "400 %"])
def test_nothing_scrolls_sideways_in_either_direction(
    served: ServedPage, open_page: Open, viewport: dict[str, int]
) -> None:
    reader = open_page(served, viewport=viewport)
    _expect_no_overflow(reader)
    for address in ("/?c=tides", "/?c=long", "/?c=ar"):
        reader.go(address)
        _expect_no_overflow(reader)
    reader.ask(LONG)
    expect(reader.provisional).to_have_count(1)
    for _ in _directions(reader):
        assert reader.overflow() <= 0
        for opener, closer in (("Conversations", "Close the list"), ("offline", "Close the link’s panel")):
            (reader.page.locator("#chip") if opener == "offline" else reader.button(opener)).click()
            assert reader.overflow() <= 0
            assert _is_within(reader, "#side:not([hidden]), #panel:not([hidden])")
            reader.button(closer).click()
        reader.button("Options of answers").click()
        assert reader.overflow() <= 0
        assert _is_within(reader, "dialog[open]")
        reader.page.keyboard.press("Escape")


def test_the_whole_page_by_keyboard_alone(served: ServedPage, open_page: Open) -> None:
    reader = open_page(served)
    keyboard, focused = reader.page.keyboard, reader.page.locator(":focus")
    expect(reader.field).to_be_focused()
    keyboard.type("One line")
    keyboard.press("Shift+Enter")
    keyboard.type("and another")
    expect(reader.field).to_have_value("One line\nand another")
    keyboard.press("Enter")
    expect(reader.provisional).to_be_visible()
    served.open_gate()
    reader.expect_end()
    expect(reader.conversations).to_have_count(4)
    keyboard.press("Control+k")
    keyboard.press("ArrowDown")
    keyboard.press("ArrowDown")
    expect(focused).to_contain_text("Two tides")
    keyboard.press("Tab")
    keyboard.press("Enter")
    expect(reader.page.get_by_label("Title")).to_be_focused()
    keyboard.press("Escape")
    expect(focused).to_have_attribute("aria-label", "Rename, export or delete Two tides")
    keyboard.press("ArrowUp")
    keyboard.press("Enter")
    expect(reader.field).to_be_focused()
    keyboard.press("Tab")
    keyboard.press("Enter")
    expect(reader.page.get_by_role("dialog", name="Options of answers")).to_be_visible()
    keyboard.press("Escape")
    expect(focused).to_have_attribute("aria-label", "Options of answers")


def test_whole_sentences_are_read_aloud_and_no_tokens(served: ServedPage, open_page: Open) -> None:
    reader = open_page(served)
    log = "Array.from(document.querySelectorAll('#announcer p'), each => each.textContent)"
    served.open_gate()
    reader.ask("Write the Fibonacci numbers.")
    reader.expect_end()
    said = reader.page.evaluate(log)
    assert len(said) <= 4
    assert "And so on, but not for ever." in " ".join(said)
    assert said[-1].startswith("End of the answer.")


def _directions(reader: Reader) -> Iterator[None]:
    """Turns the page from left to right, and then from right to left."""
    for direction in ("ltr", "rtl"):
        reader.page.evaluate(f"document.documentElement.dir = '{direction}'")
        yield


def _expect_no_overflow(reader: Reader) -> None:
    for _ in _directions(reader):
        assert reader.overflow() <= 0


def _is_within(reader: Reader, selector: str) -> bool:
    box = reader.page.locator(selector).bounding_box()
    return box is not None and box["x"] >= 0 and box["x"] + box["width"] <= NARROW["width"]
