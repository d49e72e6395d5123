"""Reasoning on the page: the same text as in the programs, folded away."""

from __future__ import annotations

from dataclasses import asdict, replace

from hypothesis import given
from hypothesis import strategies as st
from moa_client.tools.thinking import THINKINGS, ReasoningMarks
from playwright.sync_api import expect

from tests.page.conftest import Open, Serve
from tests.page.stage import Stage

MARKS = [
    ReasoningMarks(each.openings, each.closings, each.is_repeated, each.others, opened=("high",)) for each in THINKINGS
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


def cases() -> tuple[list[object], list[list[object]]]:
    """Answers in pieces, and what the programs make of them."""
    given_: list[object] = []
    expected: list[list[object]] = []

    @given(st.sampled_from(MARKS), st.sampled_from(["", "high"]), st.data())
    def divide(marks: ReasoningMarks, effort: str, data: st.DataObject) -> None:
        words = st.one_of(
            st.sampled_from([*marks.all, *(mark[:-1] for mark in marks.all), "\n", " ", "\x85"]),
            st.text("aé😀<", max_size=3),
        )
        text = "".join(data.draw(st.lists(words, max_size=12)))
        places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
        ends = [*places, len(text)]
        pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        add(marks, effort, pieces, pieces.pop())

    def add(marks: ReasoningMarks, effort: str, pieces: list[str], provisional: str) -> None:
        split = marks.split(effort or None)
        for count in range(1, len(pieces) + 1):
            split.read("".join(pieces[:count]), count)
        reasoning, rest = split.ahead(provisional)
        given_.append([asdict(marks), effort, pieces, provisional])
        expected.append(
            [split.reasoning + reasoning, split.text + rest, split.is_thinking, split.reasoning_tokens, True]
        )

    divide()
    add(TAGS, "", [f"{TAGS.openings[0]}a{TAGS.closings[0]}b"], "")  # reasoning that begins and ends in one piece
    return given_, expected


def test_reasoning_can_be_asked_for_where_the_model_has_it(serve: Serve, open_page: Open) -> None:
    served = serve(answers)
    served.call(lambda: setattr(served.backend, "thinking", replace(TAGS, efforts=("none", "high"))))
    reader = open_page(served)
    reader.button("Options of answers").click()
    reader.page.get_by_text("More", exact=True).click()
    reader.page.get_by_label("Reasoning").select_option("high")
    reader.page.get_by_label("Thinking budget").fill("64")
    assert reader.violations() == []
    reader.button("Save").click()
    expect(reader.page.locator("#options-said")).to_have_text("thinking budget 64, reasoning effort high")
    reader.ask("Why?")
    expect(reader.page.locator(".reasoning")).to_have_count(1)
    reader.expect_end()
    served.call(lambda: setattr(served.backend, "thinking", None))  # another model
    reader.button("New conversation").click()
    reader.ask("Why?")
    expect(reader.answer).to_have_text("Because.")
    first, second = served.call(
        lambda: [each.asked[0][1] for each in served.backend.open_conversations.values() if each.asked]
    )
    assert (first.reasoning_effort, first.thinking_budget) == ("high", 64)
    assert (second.reasoning_effort, second.thinking_budget) == (None, None)
    reader.button("Options of answers").click()
    expect(reader.page.get_by_label("Thinking budget")).to_be_hidden()


async def answers(stage: Stage, question: str) -> None:
    await stage.commit("Because.")
    stage.end()


async def thinks(stage: Stage, question: str) -> None:
    await stage.commit("<think>\nIs it *red*? ")
    await stage.gate("more")
    await stage.commit("No. ")
    await stage.gate("answer")
    await stage.commit("\n</think>\n\nIt is **white**.")
    stage.end()


def test_the_script_divides_answers_as_the_programs_do(serve: Serve, open_page: Open) -> None:
    asked, expected = cases()
    assert open_page(serve(thinks)).page.evaluate(DIVIDE, asked) == expected


def test_reasoning_is_folded_away_until_it_is_opened(serve: Serve, open_page: Open) -> None:
    served = serve(thinks)
    served.call(lambda: setattr(served.backend, "thinking", TAGS))
    reader = open_page(served)
    reader.ask("Which colour?")
    summary, reasoning = reader.page.locator(".thinking summary"), reader.page.locator(".reasoning")
    expect(summary).to_have_text("Thinking … 4 tokens")
    expect(reasoning).to_be_hidden()
    summary.press("Enter")
    expect(reasoning).to_have_text("Is it red?")
    served.open_gate("more")
    expect(reasoning).to_have_text("Is it red? No.")
    assert reader.violations() == []
    served.open_gate("answer")
    expect(reader.answer).to_have_text("It is white.")
    reader.expect_end()
    expect(summary).to_have_text("Thought, 6 tokens")
    expect(reasoning).to_be_visible()  # as the reader left it
    expect(reader.answer.locator("strong")).to_have_text("white")
    reader.button("Copy the answer").click()
    expect(reader.page.locator(".after").get_by_role("button", name="Copied")).to_be_visible()
    assert reader.page.evaluate("navigator.clipboard.readText()") == "It is **white**."
    reader.page.reload()
    expect(summary).to_have_text("Thought, 4 words")
    expect(reader.answer).to_have_text("It is white.")
