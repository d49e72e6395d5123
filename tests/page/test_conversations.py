"""Several conversations in a browser, and the page for everybody: narrow and wide, light and dark, by keyboard, read aloud; and its routes,
without a browser.
"""

import json
import re
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.chat.question import TextFile, folded, with_files
from moa_client.conversation.events import HeldBack, LinkState
from moa_client.page.routes import TOO_BIG, Crossing
from moa_client.surface.messages import MOST_QUESTION_BYTES
from playwright.sync_api import expect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.sync.connection import Connection

from tests.page.conftest import Open, Serve
from tests.page.fake_daemon import MODEL, SERVER, Stage, says
from tests.page.served import ServedPage

ASH = "What is the Latin name of the ash?"
TIDES = [("Why are there two tides?", "The *Moon* pulls."), ("And spring tides?", "The Sun too.")]


@pytest.fixture
def served(serve: Serve) -> ServedPage:
    served = serve(says("An answer ", "to the end."))
    served.remember("tides", "Two tides", TIDES, 24 * 3600)
    served.remember("ash", "", [(ASH, "Fraxinus.")], 30 * 24 * 3600)
    return served


def test_a_new_conversation_joins_the_list_and_what_is_typed_stays_where_it_was_typed(
    served: ServedPage, open_page: Open
) -> None:
    reader = open_page(served)
    expect(reader.conversations).to_have_text(["Two tides", ASH])
    expect(reader.page.locator(".day")).to_have_text(["Yesterday", re.compile(r"^[A-Z][a-z]+ \d{4}$")])
    reader.ask("What is new?")
    expect(reader.page.locator(".day").first).to_have_text("Today")
    expect(reader.conversations).to_have_text(["What is new?", "Two tides", ASH])
    expect(reader.page.locator("[aria-current=page]")).to_contain_text("What is new?")
    served.open_gate()
    reader.expect_end()
    assert reader.page.url.endswith("/?c=c003")
    reader.field.fill("not asked yet")
    reader.conversations.nth(2).click()
    expect(reader.answer).to_have_text("Fraxinus.")
    expect(reader.field).to_have_value("")
    assert reader.page.title() == f"{ASH} – moa"
    reader.page.go_back()
    reader.expect_answer("An answer to the end.")
    expect(reader.field).to_have_value("not asked yet")


@pytest.mark.parametrize("address", ["/?c=tides", "/"], ids=["open", "not open"])
def test_export_and_delete_after_confirmation(served: ServedPage, open_page: Open, address: str) -> None:
    reader = open_page(served, address)
    manage, confirm = reader.button("Rename, export or delete Two tides"), reader.page.get_by_role("alertdialog")
    for form, name in (("Markdown", "conversation-tides.md"), ("JSON", "conversation-tides.json")):
        manage.click()
        with reader.page.expect_download() as download:
            reader.button(f"Export as {form}").click()
        assert download.value.suggested_filename == name
    manage.click()
    reader.button("Delete …").click()
    expect(confirm).to_contain_text("“Two tides” will be deleted from this device for good.")
    reader.button("Cancel").click()
    expect(reader.conversations).to_have_count(2)
    manage.click()
    reader.button("Delete …").click()
    confirm.get_by_role("button", name="Delete").click()
    expect(reader.conversations).to_have_text([ASH])
    expect(reader.turns).to_have_count(0)
    assert "tides" not in served.backend.open_conversations


PNG = list(b"\x89PNG\r\n\x1a\n\0")
FRAME = """async (cases) => {
  const { framed, unframed } = await import("/page/chat/composer.js");
  return cases.map(([question, files]) => {
    const asked = framed(question, files);
    const back = unframed(asked);
    return [asked, framed(back.question, back.files), back.files.length, back.question];
  });
}"""
HAND_OVER = """([selector, event, files]) => {
  const given = new DataTransfer();
  for (const [name, type, bytes] of files) given.items.add(new File([new Uint8Array(bytes)], name, { type }));
  const init = { bubbles: true, cancelable: true, dataTransfer: given, clipboardData: given };
  document.querySelector(selector).dispatchEvent(new (event === "paste" ? ClipboardEvent : DragEvent)(event, init));
}"""


def test_the_script_frames_files_as_the_programs_do(serve: Serve, open_page: Open) -> None:
    cases: list[tuple[str, list[TextFile]]] = []
    texts = st.lists(st.sampled_from(["\n", "</file>", "a", "😀", '<file name="b">'])).map("".join)

    @given(texts, st.lists(st.builds(TextFile, st.sampled_from(["a.txt", "b c"]), texts), max_size=3))
    def collect(question: str, files: list[TextFile]) -> None:
        cases.append((question, files))

    collect()
    told = open_page(serve(says("Yes."))).page.evaluate(
        FRAME, [(question, [{"name": each.name, "text": each.text} for each in files]) for question, files in cases]
    )
    for (question, files), (asked, again, count, rest) in zip(cases, told, strict=True):
        assert asked == again == with_files(question, files)
        ends = (number for number, each in enumerate(files, 1) if "\n</file>\n\n" in f"\n{each.text}\n")
        assert count >= next(ends, len(files))  # what comes behind a text that ends its file may not be told from it
        assert folded(asked).endswith(folded(rest))


def test_files_go_with_the_question(serve: Serve, open_page: Open) -> None:
    served = serve(says("Yes."))
    reader = open_page(served)
    chips = reader.page.locator(".file-name")

    def hand_over(event: str, *files: tuple[str, str, list[int]]) -> None:
        reader.page.evaluate(HAND_OVER, ["#question" if event == "paste" else "#turns", event, files])

    hand_over("drop", ("notes.txt", "text/plain", list("Añ 😀\r\n".encode())), ("cat.png", "image/png", PNG))
    expect(chips).to_have_text(["notes.txt"])
    expect(reader.notice).to_have_text("cat.png is a picture: models read text only. Describe what it shows.")
    hand_over("paste", ("a.bin", "", [65, 0, 66]))
    expect(reader.notice).to_have_text("a.bin is not text in UTF-8. Convert it first, for example with iconv.")
    hand_over("paste", ("b.py", "", list(b"print()")))
    expect(chips).to_have_text(["notes.txt", "b.py"])
    reader.field.fill("What is it?")
    assert reader.violations() == []
    reader.page.reload()  # of a conversation in which nothing was asked yet
    expect(chips).to_have_text(["notes.txt", "b.py"])
    expect(reader.field).to_have_value("What is it?")
    reader.expect_connection()
    reader.button("Remove b.py").press("Enter")
    expect(reader.field).to_be_focused()
    reader.field.press("Enter")
    reader.expect_end()
    expect(chips).to_have_count(0)
    assert served.asked[-1][0] == with_files("What is it?", [TextFile("notes.txt", "Añ 😀")])
    expect(reader.conversations).to_have_text(["notes.txt"])
    question = reader.page.locator(".question")
    expect(question.locator(".asked-text")).to_have_text("What is it?")
    question.get_by_text("notes.txt, 8 B").press("Enter")
    expect(question.locator("pre")).to_have_text("Añ 😀")
    reader.edit(0, "And this?")
    expect(question.locator(".asked-text")).to_have_text("And this?")
    assert served.asked[-1][0] == with_files("And this?", [TextFile("notes.txt", "Añ 😀")])


CODE = """A generator keeps only two numbers, however far it goes:

```python
def fibonacci() -> Iterator[int]:
    yield from endless(0, 1)
```

| call | result |
| --- | ---: |
| the 50th number | 7,778,742,049 |

> It never ends by itself; `islice` takes as **many** as are *wanted*."""


WIDE, NARROW = {"width": 1360, "height": 800}, {"width": 320, "height": 640}
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
def spread(serve: Serve) -> ServedPage:
    spread = serve(script)
    spread.remember("tides", "Two tides", [("Why are there two tides?", CODE)], 3600)
    spread.remember("long", LONG, [(LONG, LONG)], 7200)
    return spread


@pytest.mark.long
@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_axe_finds_nothing_and_nothing_scrolls_sideways(
    spread: ServedPage, open_page: Open, viewport: dict[str, int], scheme: str
) -> None:
    def check() -> None:
        assert reader.violations() == []
        assert reader.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0

    reader = open_page(spread, viewport=viewport, color_scheme=scheme)
    check()
    reader.ask(f"Write the Fibonacci numbers. {LONG}")
    expect(reader.button("Write on anyway")).to_be_visible()
    check()
    spread.open_gate()
    reader.expect_end()
    check()
    manage = ["Rename, export or delete Two tides", "Delete …"]
    drawer = ["Conversations"] if viewport is NARROW else []
    panel = reader.page.get_by_role("complementary", name="The link")
    for openers in (["Options of answers"], [*drawer, *manage]):
        for opener in openers:
            reader.button(opener).click()
            check()
        for _ in openers:
            reader.page.keyboard.press("Escape")
    if viewport is NARROW:  # where the panel is a drawer
        reader.page.locator("#chip").click()
        expect(panel).to_be_visible()
        check()
        reader.page.keyboard.press("Escape")
        expect(reader.page.locator("#chip")).to_be_focused()
    expect(panel).to_be_visible(visible=viewport is WIDE)
    spread.kill()
    expect(reader.notice).to_contain_text("moa-client does not run")
    check()


@pytest.mark.long
def test_the_whole_page_by_keyboard_alone_and_answers_read_aloud(spread: ServedPage, open_page: Open) -> None:
    reader = open_page(spread)
    keyboard, focused = reader.page.keyboard, reader.page.locator(":focus")
    expect(reader.field).to_be_focused()
    keyboard.type("One line")
    keyboard.press("Shift+Enter")
    keyboard.type("and another")
    expect(reader.field).to_have_value("One line\nand another")
    keyboard.press("Enter")
    expect(reader.provisional).to_be_visible()
    spread.open_gate()
    reader.expect_end()
    said = reader.page.locator("#announcer p").all_text_contents()
    assert len(said) <= 4  # whole sentences, and no tokens
    assert "And so on, but not for ever." in " ".join(said)
    assert said[-1].startswith("End of the answer.")
    expect(reader.conversations).to_have_count(3)

    def press(*keys: str) -> None:
        for key in keys:
            keyboard.press(key)

    press("Control+k", "ArrowDown", "ArrowDown")
    expect(focused).to_contain_text("Two tides")
    press("Tab", "Enter")
    expect(reader.page.get_by_label("Title")).to_be_focused()
    press("Escape")
    expect(focused).to_have_attribute("aria-label", "Rename, export or delete Two tides")
    press("ArrowUp", "Enter")
    expect(reader.field).to_be_focused()
    press("Tab", "Enter")
    expect(reader.page.get_by_role("dialog", name="Options of answers")).to_be_visible()
    press("Escape")
    expect(focused).to_have_attribute("aria-label", "Options of answers")


def request(served: ServedPage, path: str, **headers: str) -> httpx.Response:
    return httpx.get(served.url + path, headers=headers, timeout=60, trust_env=False)


def talk(served: ServedPage, path: str = "/moa/v1/conversation") -> ClientConnection:
    return connect(f"ws://127.0.0.1:{served.port}{path}", max_size=None, proxy=None)


def answer(tab: Connection, sent: str | dict[str, Any]) -> dict[str, Any]:
    """What comes next after a message."""
    tab.send(sent if isinstance(sent, str) else json.dumps(sent))
    told = json.loads(tab.recv(60))
    assert isinstance(told, dict)
    return told


def test_files_have_types_tags_and_a_strict_policy(served: ServedPage) -> None:
    types = {"/": "text/html", "/page/app.js": "text/javascript", "/page/styles/base.css": "text/css"}
    for path, kind in {**types, "/page/icon.svg": "image/svg+xml", "/page/vendor/README.txt": "text/plain"}.items():
        response = request(served, path)
        assert response.status_code == 200, path
        assert response.headers["content-type"].startswith(kind)
        assert response.headers["content-security-policy"] == (
            "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        )
        assert response.headers["x-content-type-options"] == "nosniff"
        again = request(served, path, **{"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_only_files_of_the_page_are_served(served: ServedPage) -> None:
    for path in ("/page/", "/page/none.js", "/page/%2e%2e/routes.py", "/page/..%2froutes.py", "/page/styles"):
        assert request(served, path).status_code == 404, path


def test_what_cannot_be_followed_changes_nothing_and_what_is_too_long_is_the_last(served: ServedPage) -> None:
    ask, opens = {"do": "ask", "question": "hi"}, {"do": "open", "conversation": "tides"}
    cases: list[tuple[str | dict[str, Any], str]] = [
        ("{", "The message cannot be read: Expecting property name"),
        (ask, "The first message must open a conversation."),
        ({**opens, "conversation": "none"}, "There is no conversation none."),
        (opens, ""),
        ({**ask, "question": " "}, "The question is empty."),
        ({"do": ["x"] * 1000}, "There is nothing to do that is called ['x', 'x',"),
        ({"do": "title", "title": "Tides"}, ""),
    ]
    with talk(served) as tab:
        for sent, words in cases:
            told = answer(tab, sent)
            assert (told["event"] == "error") is bool(words)
            assert not words or (words in told["message"] and len(told["message"]) < 200)
        with pytest.raises(ConnectionClosed) as closed:
            answer(tab, {"do": "x" * MOST_QUESTION_BYTES})
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == TOO_BIG


def test_what_crosses_the_link_is_told_to_those_who_watch(served: ServedPage) -> None:
    watchers, crossing = served.backend.tap._watchers, Crossing(0.0, "up", "draft", 30, 3, 0, "tides", 0)
    with talk(served, "/moa/v1/timeline") as tab:
        served.wait_until(lambda: len(watchers) == 1)
        served.call(lambda: watchers[0].put_nowait(crossing))
        assert json.loads(tab.recv(60)) == asdict(crossing)
    served.wait_until(lambda: not watchers)


def test_the_menu_has_another_model_answer_and_stays_where_it_was_if_that_is_refused(
    served: ServedPage, open_page: Open
) -> None:
    served.backend.models = ((MODEL, SERVER), ("qwen3-4b", "gpu"), ("gpt-4o-mini", "qwen3-4b"), ("qwen3-8b", "loads"))
    reader = open_page(served)
    menu = reader.page.get_by_label("Model", exact=True)
    expect(menu.locator("option")).to_have_text([MODEL, "qwen3-4b", "gpt-4o-mini", "qwen3-8b"])
    expect(menu).to_have_value(MODEL)
    menu.select_option("qwen3-4b")
    expect(reader.page.locator("#f-model")).to_have_text("qwen3-4b")
    menu.select_option("qwen3-8b")
    expect(reader.notice).to_have_text("Asking for qwen3-8b …")
    expect(menu).to_have_value("qwen3-8b")
    served.backend.models = served.backend.models[:1]  # meanwhile
    menu.select_option("gpt-4o-mini")
    expect(reader.notice).to_contain_text("There is no model 'gpt-4o-mini' here.")
    expect(menu).to_have_value("qwen3-4b")
    assert reader.violations() == []
    served.backend.models = ((MODEL, SERVER), ("qwen3-4b", "gpu"))
    reader.button("New conversation").click()
    expect(menu).to_have_value("qwen3-4b")  # as new conversations of before
