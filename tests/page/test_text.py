"""The text of answers in a browser: Markdown and nothing but Markdown, reasoning that is folded away, and calls of tools."""

import re
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Asked, CallsLeft, CallWanted, LinkState, ToolsChanged
from moa_client.surface.messages import ConversationFacts, Fields, fields_of, opened_fields
from moa_client.tools.answer_reader import split_by
from moa_client.tools.thinking import THINKINGS, ReasoningMarks
from moa_client.tools.tool import ToolCall
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
    for name, text in (("Copy the code", "print('a')\nprint('b')"), ("Copy the answer", CODE)):
        reader.button(name).click()
        reader.page.wait_for_function("async text => (await navigator.clipboard.readText()) === text", arg=text)


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


MARKS = [
    ReasoningMarks(each.openings, each.closings, each.repeated, each.others, opened=("high",)) for each in THINKINGS
]
TAGS = MARKS[-1]
DIVIDE = """async (cases) => {
  const { AnswerSplit } = await import("/page/text/reasoning.js");
  return cases.map(([marks, effort, pieces, provisional]) => {
    const split = new AnswerSplit(marks, effort);
    for (const piece of pieces) split.read(piece, 1);
    const { reasoning, text, isThinking } = split.shown(provisional, true);
    const whole = pieces.join("") + provisional;
    const isInPlace = ({ text, places }) => [...places.keys()].every((index) => whole[places[index]] === text[index]);
    return [reasoning.text, text.text, split.reader.isThinking, split.tokens, isInPlace(reasoning) && isInPlace(text)];
  });
}"""


THINKS = says("<think>\nIs it *red*? ", "No. ", "\n</think>\n\nIt is **white**.")


def test_the_script_divides_answers_as_the_programs_do(serve: Serve, open_page: Open) -> None:
    asked: list[object] = []
    expected: list[list[object]] = []

    @given(st.sampled_from(MARKS), st.sampled_from(["", "high"]), st.data())
    def divide(marks: ReasoningMarks, effort: str, data: st.DataObject) -> None:
        shortened = (mark[:-1] for mark in marks.all)
        words = st.sampled_from([*marks.all, *shortened, "\n", " ", "\x85"]) | st.text("aé😀<", max_size=3)
        text = "".join(data.draw(st.lists(words, max_size=12)))
        ends = [*sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4))), len(text)]
        *pieces, provisional = (text[start:end] for start, end in zip([0, *ends], ends, strict=False))
        add(marks, effort, pieces, provisional)

    def add(marks: ReasoningMarks, effort: str, pieces: list[str], provisional: str) -> None:
        split = split_by(marks, effort or None)
        for count in range(1, len(pieces) + 1):
            split.read("".join(pieces[:count]), count)
        reasoning, rest = split.ahead(provisional)
        asked.append([asdict(marks), effort, pieces, provisional])
        shown = [split.reasoning + reasoning, split.text + rest]
        expected.append([*shown, split.is_thinking, split.reasoning_tokens, True])

    divide()
    add(TAGS, "", [f"{TAGS.openings[0]}a{TAGS.closings[0]}b"], "")  # reasoning that begins and ends in one piece
    assert open_page(serve(THINKS)).page.evaluate(DIVIDE, asked) == expected


def test_reasoning_is_folded_away_until_it_is_opened(serve: Serve, open_page: Open) -> None:
    served = serve(THINKS)
    served.backend.thinking = TAGS
    reader = open_page(served)
    reader.ask("Which colour?")
    summary, reasoning = reader.page.locator(".thinking summary"), reader.page.locator(".reasoning")
    expect(summary).to_have_text("Thinking … 4 tokens")
    expect(reasoning).to_be_hidden()
    summary.press("Enter")
    expect(reasoning).to_have_text("Is it red?")
    served.open_gate()
    expect(reasoning).to_have_text("Is it red? No.")
    assert reader.violations() == []
    served.open_gate()
    reader.expect_answer("It is white.")
    expect(summary).to_have_text("Thought, 6 tokens")
    expect(reasoning).to_be_visible()  # as the reader left it
    expect(reader.answer.locator("strong")).to_have_text("white")
    reader.page.reload()
    expect(summary).to_have_text("Thought, 4 words")
    expect(reader.answer).to_have_text("It is white.")


PARIS, ROME = (ToolCall(city, "get_weather", f'{{"city": "{city}"}}') for city in ("Paris", "Rome"))


LEFT = "The model has called tools 8 times in a row."


async def looks(stage: Stage, question: str) -> None:
    if not stage.conversation.requests:
        stage.publish(ToolsChanged("The server files does not start."))
        stage.commit("Let me look.")
        stage.end(calls=1)
        await stage.call(PARIS, "weather", "sunny, 21 degrees")
        stage.commit("And Rome?")
        stage.end(calls=1)
        stage.publish(CallWanted(ROME.id, "get_weather", "{", "weather"))
        stage.publish(CallsLeft(LEFT))
    else:
        stage.end(calls=1)
        await stage.call(ROME, "weather", "")
        stage.commit("It is sunny in Paris.")


def test_a_call_waits_for_its_reader_and_those_that_were_left_go_on(ask: Ask) -> None:
    reader = ask(looks, "Is it sunny?")
    call = reader.page.locator(".call")
    expect(reader.page.locator(".remark")).to_have_text(["The server files does not start."])
    expect(call).to_contain_text("get_weather of weather")
    expect(call.get_by_role("group", name="Arguments of get_weather")).to_have_text('{\n  "city": "Paris"\n}')
    assert reader.violations() == []
    reader.page.reload()  # it is shown again
    expect(call).to_contain_text("The model wants to call this tool. May it?")
    expect(reader.button("Stop")).to_be_visible()
    reader.button("Always").focus()
    reader.page.keyboard.press("Shift+Tab")
    reader.page.keyboard.press("Enter")
    expect(call).to_contain_text("It runs …")
    reader.served.open_gate("called")
    first, second = call.nth(0), call.nth(1)
    first.get_by_text("Result, 17 characters").press("Enter")
    expect(first.locator(".call-result pre")).to_have_text("sunny, 21 degrees")
    expect(reader.standing).to_have_text(LEFT)
    expect(call).to_have_count(1)
    reader.button("Continue").click()
    second.get_by_role("button", name="Deny").click()
    expect(second).to_contain_text("You did not allow this call.")
    reader.served.open_gate("called")
    expect(reader.answer).to_have_text("It is sunny in Paris.")
    reader.expect_end(3)
    expect(reader.page.locator(".question:visible")).to_have_text(["Is it sunny?"])
    reader.page.reload()
    expect(first).to_contain_text("Result, 17 characters")
    expect(reader.page.locator(".call-buttons:visible")).to_have_count(0)
