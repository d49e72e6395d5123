"""The page for everybody, in a browser: narrow and wide, light and dark, by keyboard, read aloud, from right to left."""

import pytest
from moa_client.conversation.events import HeldBack, LinkState
from playwright.sync_api import expect

from tests.page.conftest import Open, Serve
from tests.page.fake_daemon import Stage
from tests.page.served import ServedPage

CODE = """A generator keeps only two numbers, however far it goes:

```python
def fibonacci() -> Iterator[int]:
    yield from endless(0, 1)
```

| call | result |
| --- | ---: |
| the 50th number | 7,778,742,049 |

> It never ends by itself; `islice` takes as **many** as are *wanted*."""


pytestmark = pytest.mark.long  # axe takes seconds a time

WIDE, NARROW = {"width": 1360, "height": 800}, {"width": 320, "height": 640}
ZOOMED = {"width": 320, "height": 256}  # what 400 % leaves of 1280 x 1024
LONG = "Averylongwordthatnobodywouldbreakbutthepagemust" * 4


async def script(stage: Stage, question: str) -> None:
    stage.commit(CODE)
    stage.link(LinkState.OFFLINE, "nothing has come from it for 0.2 s")
    stage.write(" And so on, and on.")
    stage.tell(HeldBack())
    await stage.gate("on")
    stage.link(LinkState.GOOD)
    stage.commit(" And so on, but not for ever.")


@pytest.fixture
def served(serve: Serve) -> ServedPage:
    served = serve(script)
    arabic = ("ما هي عاصمة مصر؟", "عاصمة مصر هي **القاهرة**.")
    served.remember("tides", "Two tides", [("Why are there two tides?", CODE)], 3600)
    served.remember("ar", "", [arabic], 60 * 3600)
    served.remember("long", LONG, [(LONG, LONG)], 7200)
    return served


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_axe_finds_nothing(served: ServedPage, open_page: Open, viewport: dict[str, int], scheme: str) -> None:
    reader = open_page(served, viewport=viewport, color_scheme=scheme)
    assert reader.violations() == []
    reader.ask("Write the Fibonacci numbers.")
    expect(reader.button("Write on anyway")).to_be_visible()
    assert reader.violations() == []
    served.open_gate()
    expect(reader.page.locator(".corrected").first).to_be_visible()
    assert reader.violations() == []
    reader.expect_end()
    manage = ["Rename, export or delete Two tides", "Delete …"]
    drawer = ["Conversations"] if viewport is NARROW else []
    panel = reader.page.get_by_role("complementary", name="The link")
    for openers in (["Options of answers"], [*drawer, *manage]):
        for opener in openers:
            reader.button(opener).click()
            assert reader.violations() == []
        for _ in openers:
            reader.page.keyboard.press("Escape")
    if viewport is NARROW:  # where the panel is a drawer
        reader.page.locator("#chip").click()
        expect(panel).to_be_visible()
        assert reader.violations() == []
        reader.page.keyboard.press("Escape")
        expect(reader.page.locator("#chip")).to_be_focused()
    expect(panel).to_be_visible(visible=viewport is WIDE)
    served.kill()
    expect(reader.notice).to_contain_text("moa-client does not run")
    assert reader.violations() == []


def test_nothing_scrolls_sideways_in_either_direction(served: ServedPage, open_page: Open) -> None:
    def check(selector: str = "") -> None:
        assert reader.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        if selector:
            box = reader.page.locator(selector).bounding_box()
            assert box is not None
            assert 0 <= box["x"] <= box["x"] + box["width"] <= ZOOMED["width"]

    reader = open_page(served, viewport=ZOOMED)
    for direction in ("ltr", "rtl"):
        for address in ("/", "/?c=tides", "/?c=long", "/?c=ar"):
            reader.go(address)
            reader.page.evaluate(f"document.documentElement.dir = '{direction}'")
            check()
        reader.ask(LONG)
        expect(reader.provisional).to_be_visible()
        for opener, closer in (
            (reader.button("Conversations"), "list"),
            (reader.page.locator("#chip"), "link’s panel"),
        ):
            opener.click()
            check("#side:not([hidden]), #panel:not([hidden])")
            reader.button(f"Close the {closer}").click()
        reader.button("Options of answers").click()
        check("dialog[open]")
        reader.page.keyboard.press("Escape")
        served.open_gate()
        reader.expect_end(3 if direction == "rtl" else 2)


def test_the_whole_page_by_keyboard_alone_and_answers_read_aloud(served: ServedPage, open_page: Open) -> None:
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
    said = reader.page.locator("#announcer p").all_text_contents()
    assert len(said) <= 4  # whole sentences, and no tokens
    assert "And so on, but not for ever." in " ".join(said)
    assert said[-1].startswith("End of the answer.")
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
