"""The text of answers in a browser: Markdown, and nothing but Markdown."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Asked, LinkState
from moa_client.surface.messages import ConversationFacts, Fields, fields_of, opened_fields
from playwright.sync_api import expect

from tests.page.conftest import Ask, Open, Serve
from tests.page.fake_daemon import GOOD, Stage, says
from tests.support.answer_events import Told, decode_bytes, events_of

HOSTILE = """<img src=x onerror="alert(1)"> <script>alert(2)</script> [click](javascript:alert(3)) \
[data](data:text/html,hi) ![picture](https://elsewhere.example/p.png) [page](https://elsewhere.example/)"""
CODE = "Look:\n\n```python\nprint('a')\nprint('b')\n```\n\nThat is `all`."


def test_text_of_a_model_stays_text(serve: Serve, open_page: Open) -> None:
    reader = open_page(serve(says(HOSTILE)))
    fetched: list[str] = []
    reader.page.on("request", lambda request: fetched.append(request.url))
    reader.page.on("dialog", lambda dialog: reader.complaints.append(dialog.message))
    reader.ask("Attack.")
    reader.expect_end()
    expect(reader.answer).to_contain_text('<img src=x onerror="alert(1)"> <script>alert(2)</script>')
    expect(reader.answer.locator("img, script")).to_have_count(0)
    links = reader.answer.locator("a")
    expect(links).to_have_text(["image: picture", "page"])
    assert links.nth(1).get_attribute("rel") == "noopener noreferrer"
    assert not reader.complaints
    assert not [url for url in fetched if not url.startswith(reader.served.url)]
    with pytest.raises(Exception, match="TrustedHTML"):  # nor may any script make HTML of a text
        reader.page.evaluate("document.body.innerHTML = '<p>hi</p>'")
    reader.complaints.clear()  # the browser says so too


def test_code_and_answers_can_be_copied(ask: Ask) -> None:
    reader = ask(says(CODE), "Code?")
    reader.expect_end()
    expect(reader.answer.get_by_role("region", name="Code, python")).to_have_text("print('a')\nprint('b')")
    reader.button("Copy the code").click()
    expect(reader.button("Copied")).to_be_visible()
    assert reader.page.evaluate("navigator.clipboard.readText()") == "print('a')\nprint('b')"
    reader.button("Copy the answer").click()
    expect(reader.page.locator(".after").get_by_role("button", name="Copied")).to_be_visible()
    assert reader.page.evaluate("navigator.clipboard.readText()") == CODE


@pytest.mark.parametrize(
    ("committed", "provisional", "html"),
    [
        ("One ", "two.", "<p>One <span>two.</span></p>"),
        ("- one\n", "- two", "<ul><li>one</li><li><span>two</span></li></ul>"),
        ("A verse,\n", "and another", "<p>A verse,<br><span>and another</span></p>"),
        ("A *very", " good* one", "<p>A <em>very <span>good</span></em><span> one</span></p>"),
        ("Text\n\n", "# Title", "<p>Text</p><h3><span>Title</span></h3>"),
        ("**bo", "ld**", "<p><strong>bo<span>ld</span></strong></p>"),
        ("| a |\n| --", "- |\n| b |", "table"),
    ],
)
def test_provisional_text_begins_inside_markdown(ask: Ask, committed: str, provisional: str, html: str) -> None:
    async def script(stage: Stage, question: str) -> None:
        stage.commit(committed)
        stage.link(LinkState.OFFLINE)
        stage.write(provisional)
        await stage.gate("never")

    reader = ask(script, "Go.")
    expect(reader.provisional.last).to_be_visible()
    if html == "table":
        expect(reader.answer.get_by_role("cell")).to_have_text(["b"])
        return
    expect(reader.answer).to_contain_text(re.findall(r"[\w.]+", provisional)[-1])  # it is drawn to its end
    shown = reader.answer.inner_html()
    for noise in (' class="provisional"', ' data-level="1"', "<div>", "</div>", "\n"):
        shown = shown.replace(noise, "")
    assert shown == html


def test_a_selection_in_earlier_text_stays_while_the_answer_goes_on(ask: Ask) -> None:
    reader = ask(says("The first paragraph.\n\nThe second ", "goes on.\n\nThe third.", "never said"), "Go.")
    expect(reader.answer).to_contain_text("The second")
    reader.answer.locator("p").first.select_text()
    reader.served.open_gate()
    expect(reader.answer).to_contain_text("The third.")
    assert reader.page.evaluate("getSelection().toString().trim()") == "The first paragraph."


Texts = list[list[object]]  # of each answer: committed and provisional text, and the number of provisional tokens
REPLAY = """async (messages) => {
  const { Conversation } = await import("/page/chat/conversation.js");
  const conversation = new Conversation();
  return messages.map((message) => {
    conversation.apply(message, 0);
    return conversation.answers.map((answer) => [answer.committed, answer.provisional, answer.waiting]);
  });
}"""


def test_the_script_holds_the_text_that_the_programs_hold(serve: Serve, open_page: Open) -> None:
    messages: list[Fields] = []
    texts: list[Texts] = []

    def send(message: Fields, told: list[Told]) -> None:
        messages.append(message)
        texts.append([[each.text.committed, each.text.provisional, len(each.text.waiting)] for each in told])

    @given(st.lists(st.text("añ€😀", max_size=12), max_size=3), st.data())
    def converse(answers: list[str], data: st.DataObject) -> None:
        told: list[Told] = []
        facts = ConversationFacts("", "", "", "", online=True)
        send(opened_fields(facts, GOOD, []), told)
        for number, text in enumerate(answers, 1):
            told.append(Told(decode_bytes, "why?", number))
            send(fields_of(Update(Asked("why?"), number)), told)
            for event in data.draw(events_of(text)):
                send(fields_of(told[-1].tell(event)), told)
            if data.draw(st.booleans()):
                send(opened_fields(facts, GOOD, [each.text for each in told]), told)

    converse()
    assert open_page(serve(says(""))).page.evaluate(REPLAY, messages) == texts
