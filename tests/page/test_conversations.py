"""Several conversations, in a browser: the list, their addresses, and what can be done with one."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.chat.question import TextFile, folded, with_files
from playwright.sync_api import expect

from tests.page.conftest import Open, Serve
from tests.page.fake_daemon import says
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


def test_search(served: ServedPage, open_page: Open) -> None:
    reader = open_page(served)
    reader.page.keyboard.press("Control+k")
    search = reader.page.get_by_role("searchbox", name="Search conversations")
    expect(search).to_be_focused()
    search.fill("fraxinus")
    expect(reader.conversations).to_have_text([ASH])
    search.press("ArrowDown")
    reader.page.keyboard.press("Enter")
    expect(reader.answer).to_have_text("Fraxinus.")
    search.fill("nowhere")
    expect(reader.page.locator("#found")).to_have_text("Nothing found.")
    search.press("Escape")
    expect(reader.conversations).to_have_count(2)
    expect(reader.field).to_be_focused()


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
