"""Reasoning on the page: the same text as in the programs, folded away."""

from dataclasses import asdict

from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.events import CallsLeft, CallWanted, ToolsChanged
from moa_client.tools.answer_reader import split_by
from moa_client.tools.thinking import THINKINGS, ReasoningMarks
from moa_client.tools.tool import ToolCall
from playwright.sync_api import expect

from tests.page.conftest import Ask, Open, Serve
from tests.page.fake_daemon import Stage, says

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
