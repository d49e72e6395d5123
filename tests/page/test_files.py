"""Text files of a question on the page: dropped, pasted or chosen, kept, sent and shown."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_client.chat.question import TextFile, folded, with_files
from playwright.sync_api import expect

from tests.page.conftest import Open, Serve
from tests.page.reader import Reader
from tests.page.stage import Stage

PNG = list(b"\x89PNG\r\n\x1a\n\0")
FRAME = """async (cases) => {
  const { framed, unframed } = await import("/page/chat/files.js");
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
  const event_ = event === "paste" ? new ClipboardEvent(event, init) : new DragEvent(event, init);
  document.querySelector(selector).dispatchEvent(event_);
}"""


async def answer(stage: Stage, question: str) -> None:
    await stage.commit("I have read it.")
    stage.end()


def hand_over(reader: Reader, event: str, *files: tuple[str, str, list[int]]) -> None:
    selector = "#question" if event == "paste" else "#turns"
    reader.page.evaluate(HAND_OVER, [selector, event, files])


def test_the_script_frames_files_as_the_programs_do(serve: Serve, open_page: Open) -> None:
    cases: list[tuple[str, list[TextFile]]] = []
    texts = st.lists(st.sampled_from(["\n", "</file>", "a", "😀", '<file name="b">'])).map("".join)

    @given(texts, st.lists(st.builds(TextFile, st.sampled_from(["a.txt", "b c"]), texts), max_size=3))
    def collect(question: str, files: list[TextFile]) -> None:
        cases.append((question, files))

    collect()
    told = open_page(serve(answer)).page.evaluate(
        FRAME, [(question, [{"name": each.name, "text": each.text} for each in files]) for question, files in cases]
    )
    for (question, files), (asked, again, count, rest) in zip(cases, told, strict=True):
        assert asked == again == with_files(question, files)
        ends = (number for number, each in enumerate(files, 1) if "\n</file>\n\n" in f"\n{each.text}\n")
        assert count >= next(ends, len(files))  # what comes behind a text that ends its file may not be told from it
        assert folded(asked).endswith(folded(rest))


def test_files_go_with_the_question(serve: Serve, open_page: Open) -> None:
    served = serve(answer)
    reader = open_page(served)
    chips = reader.page.locator(".file-name")
    hand_over(reader, "drop", ("notes.txt", "text/plain", list("Añ 😀\r\n".encode())), ("cat.png", "image/png", PNG))
    expect(chips).to_have_text(["notes.txt"])
    expect(reader.notice).to_have_text("cat.png is a picture: models read text only. Describe what it shows.")
    hand_over(reader, "paste", ("a.bin", "", [65, 0, 66]))
    expect(reader.notice).to_have_text("a.bin is not text in UTF-8. Convert it first, for example with iconv.")
    hand_over(reader, "paste", ("b.py", "", list(b"print()")))
    expect(chips).to_have_text(["notes.txt", "b.py"])
    reader.field.fill("What is it?")
    assert reader.violations() == []
    reader.page.reload()  # of a conversation in which nothing was asked yet
    expect(chips).to_have_text(["notes.txt", "b.py"])
    expect(reader.field).to_have_value("What is it?")
    reader.expect_connection("open")
    reader.button("Remove b.py").press("Enter")
    expect(reader.field).to_be_focused()
    reader.field.press("Enter")
    reader.expect_end()
    expect(chips).to_have_count(0)
    [(asked, _)] = served.call(lambda: [each for c in served.backend.open_conversations.values() for each in c.asked])
    assert asked == with_files("What is it?", [TextFile("notes.txt", "Añ 😀")])
    expect(reader.conversations).to_have_text(["notes.txt"])
    question = reader.page.locator(".question")
    expect(question.locator(".asked-text")).to_have_text("What is it?")
    question.get_by_text("notes.txt, 8 B").press("Enter")
    expect(question.locator("pre")).to_have_text("Añ 😀")
    turn = reader.turns.nth(0)
    turn.hover()
    turn.get_by_role("button", name="Edit the question").click()
    field = turn.get_by_role("textbox", name="Question, to be asked again")
    expect(field).to_have_value("What is it?")
    field.fill("And this?")
    field.press("Enter")
    expect(question.locator(".asked-text")).to_have_text("And this?")
    asked = served.call(
        lambda: next(each for each in served.backend.open_conversations.values() if each.asked).asked[-1][0]
    )
    assert asked == with_files("And this?", [TextFile("notes.txt", "Añ 😀")])
