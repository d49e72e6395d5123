"""Answers that ended without the server, while the user is asked for the next question."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.chat.display.layout import Markdown, Weight
from moa_client.chat.display.page import TerminalPage
from moa_client.chat.display.screen import Screen
from moa_client.chat.display.word_wrap import wrap_words
from moa_client.chat.folding import Folding, Shows
from moa_client.chat.messages import first_cut_words, thinking_words
from moa_client.chat.views import JsonView, make_view
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Asked,
    Committed,
    Corrected,
    Earlier,
    Ended,
    LinkState,
    Provisional,
    Refused,
    Settled,
    SurfaceEvent,
)
from moa_client.conversation.figures import LinkStatus
from moa_client.tools.thinking import ReasoningMarks
from moa_shared.errors import ContextLengthError
from moa_shared.protocol.finish_rule import Finish

from tests.support.terminal import Display
from tests.support.told import Told

SIZE = (70, 12)
WORDS = ["sure ", "guessed ", "wrong ", "right ", "more"]
CORRECTED = Settled((1, 3, 4), AnswerOutcome.CORRECTED, Finish.STOP, 2, 1)


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


class Chat:
    """A page, and a prompt that lets it be drawn when it asks for that."""

    def __init__(self) -> None:
        self.display = Display(*SIZE)
        self.now = 0.0
        self.is_typed_into = False
        self.page = TerminalPage(Screen(*SIZE, styled=True), lambda: SIZE, self.write, clock=lambda: self.now)
        self.written = asyncio.Event()
        self.told = Told(decode, "why?")

    def write(self, text: str) -> None:
        self.display.show(text)
        self.written.set()

    def request(self) -> None:
        self.write(self.page.draw())

    def end_standalone(self) -> None:
        """`sure` is committed, `guessed wrong` is not."""
        self.page.begin("status")
        for event in (Committed((0,)), Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True)):
            self.told.tell(event)
            self.page.show(self.told.text, "status")
        self.page.end(self.told.text, is_open=True)

    def decide(self, *events: Earlier | Settled | Refused) -> None:
        for event in events:
            self.page.show_earlier(self.told.tell(event), self.told.text)

    @property
    def lines(self) -> list[str]:
        explained = wrap_words(first_cut_words(styled=True), SIZE[0] - 1).split("\n")
        explained += wrap_words(first_cut_words(styled=True), SIZE[0]).split("\n")
        return [line for line in self.display.text.split("\n") if line and line not in explained]


async def test_who_is_typing_is_told_what_has_changed_instead() -> None:
    chat = Chat()
    chat.end_standalone()
    chat.is_typed_into = True
    with chat.page.below(chat):
        chat.decide(Earlier(Committed((1,), 1)))
        assert (chat.lines, chat.display.dim.strip()) == (["sure guessed wrong"], "wrong")  # which moves nothing
        chat.decide(Earlier(Corrected(1)), Earlier(Committed((3,))))
        assert (chat.lines, chat.display.underlined) == (["sure guessed wrong"], "")
        chat.decide(Earlier(Committed((4,))), CORRECTED)
    assert chat.lines == [
        "sure guessed wrong",
        '(The server has corrected the answer to "why?"; 1 of 2 tokens written',
        "here was right.) From the sentence that changes:",
        "sure guessed right more",
    ]
    assert chat.display.underlined == "sure guessed right more"


async def test_what_is_out_of_reach_is_told_too() -> None:
    chat = Chat()
    chat.end_standalone()
    with chat.page.below(chat):
        chat.page.screen.leave_room(SIZE[1])
        chat.decide(Earlier(Committed((1,), 1)), Earlier(Corrected(1)), Earlier(Committed((3, 4))), CORRECTED)
    assert [chat.lines[0], *chat.lines[-2:]] == [
        "sure guessed wrong",
        "here was right.) From the sentence that changes:",
        "sure guessed right more",
    ]


async def test_a_refused_answer_stays_as_it_is() -> None:
    chat = Chat()
    chat.end_standalone()
    chat.decide(Refused(ContextLengthError("Too long.")))
    assert chat.lines[0] == "sure guessed wrong"
    assert chat.display.dim.strip() == "guessed wrong"
    assert "The server refuses to check" in chat.lines[1]


async def test_an_earlier_answer_is_corrected_above_the_one_that_is_written_now() -> None:
    chat = Chat()
    chat.end_standalone()
    chat.page.adopt("> next")
    now = Told(decode)
    chat.page.begin("status")
    now.tell(Provisional((4,)))
    chat.page.show(now.text, "status")
    chat.decide(Earlier(Committed((1,), 1)), Earlier(Corrected(1)), Earlier(Committed((3,))))
    assert chat.lines == ["sure guessed right", "> next", "more", "status"]
    chat.page.forget_earlier([chat.told.text])
    chat.page.end(now.text, is_open=False)
    chat.page.close()
    assert chat.lines == ["sure guessed right", "> next", "more"]


MARKS = {Weight.BOLD: "b", Weight.ITALIC: "i", Weight.CODE: "c", Weight.BOLD | Weight.CODE: "C"}


def shown(text: str, before: str = "") -> tuple[str, str]:
    """What is shown of a text, and a letter for how each of it looks."""
    markdown = Markdown()
    markdown.pass_by(before)
    looks = markdown.looks(text)
    assert len(looks) == len(text)
    pairs = [
        (character if look.shown is None else look.shown, look.weight)
        for character, look in zip(text, looks, strict=True)
    ]
    return "".join(glyph for glyph, _ in pairs), "".join(MARKS.get(weight, "-") for glyph, weight in pairs if glyph)


@pytest.mark.parametrize(
    ("before", "text", "glyphs", "looks"),
    [
        ("", "a **bold** *few* _words_", "a bold few words", "--bbbb-iii-iiiii"),
        ("", "`x * y`, **a `b` c**", "x * y, a b c", "ccccc--bbCbb"),
        ("", "## A title\n- one\n  * two", "A title\n\u2022 one\n  \u2022 two", "b" * 7 + "-" * 14),
        ("", "1. 2 * 3 * 4 and snake_case_name", "1. 2 * 3 * 4 and snake_case_name", "-" * 32),
        ("", "**not closed\nhere** #hashtag", "**not closed\nhere** #hashtag", "-" * 28),
        ("", "```py\nx = **y\n```\n**z**", "```py\nx = **y\n```\nz", "ccccc-ccccccc-ccc-b"),
        ("```\ncode\n", "**x**", "**x**", "ccccc"),
        ("```\ncode\n```\n", "**x**", "x", "b"),
        ("**bo", "ld** x", "ld x", "bb--"),
        ("a ", "- x", "- x", "---"),
    ],
)
def test_marks_are_hidden_and_what_they_enclose_stands_out(before: str, text: str, glyphs: str, looks: str) -> None:
    assert shown(text, before) == (glyphs, looks)


def test_the_beginning_of_a_line_can_be_given_back() -> None:
    markdown = Markdown()
    markdown.pass_by("a\n**bo")
    markdown.go_back("**bo")
    assert [look.shown for look in markdown.looks("**bo**")] == ["", "", None, None, "", ""]


@given(st.text("*_`#~- ab\n1.", max_size=60), st.integers(0, 60))
def test_complete_lines_look_the_same_wherever_the_text_is_cut(text: str, cut: int) -> None:
    whole = Markdown().looks(text)
    parted = Markdown()
    parted.pass_by(text[:cut])
    assert parted.looks(text[cut:]) == whole[cut:]


FOLDING_MARKS = ReasoningMarks(("<think>",), ("</think>",))
ANSWER = "<think>\nFirst.\n</think>\n\nAn answer."


def folding(shows: Shows = "fold") -> Folding:
    return Folding(FOLDING_MARKS, lambda: shows)


def tell(view: Any, events: list[SurfaceEvent]) -> AnswerText:
    text = AnswerText(number=1)
    view.begin()
    for event in events:
        text.apply(event)
        view.show(Update(event, 1), text)
    view.end(text)
    return text


@given(st.lists(st.integers(0, len(ANSWER))), st.sampled_from(["fold", "show"]))
def test_what_is_shown_grows_and_does_not_depend_on_its_pieces(places: list[int], shows: Shows) -> None:
    fold, text, before = folding(shows), AnswerText(number=1), ""
    for end in [*sorted(places), len(ANSWER)]:
        text.committed = ANSWER[:end]
        text.provisional = ANSWER[end:]
        shown = fold.shown(text)
        assert shown.committed.startswith(before)
        assert (
            shown.committed + shown.provisional == ("" if shows == "fold" else "Thinking:\nFirst.\n\n") + "An answer."
        )
        before = shown.committed


def test_a_line_tells_of_reasoning_while_it_comes() -> None:
    fold, text = folding(), AnswerText(number=1)
    text.apply(Committed((1, 2, 3), text="<think>\nFirst."))
    fold.shown(text)
    assert thinking_words(fold.thinking_tokens) == "thinking ... 3 tokens | "
    statuses: list[str] = []
    page = SimpleNamespace(show=lambda _, status: statuses.append(status))
    status = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)
    view = make_view(
        lambda: status, print, print, json_events=False, unverified=True, folding=fold, page=cast("Any", page)
    )
    view.show(Update(Committed((), text=""), 1), text)
    assert statuses == ["thinking ... 3 tokens | link good"]
    text.apply(Committed((4, 5), text="</think>An"))
    assert fold.shown(text).committed == "An"
    assert thinking_words(fold.thinking_tokens) == ""


def test_an_answer_that_goes_on_shows_only_what_is_new() -> None:
    fold, text = folding(), AnswerText(number=1)
    text.apply(Committed((1, 2), text="<think>First.</think>An"))
    text.apply(Ended(Finish.MAX_TOKENS))
    fold.shown(text)
    text.seen, text.is_running = len(text.committed), True
    text.apply(Committed((3,), text=" answer."))
    assert fold.shown(text).unseen == " answer."


def test_programs_get_reasoning_in_fields_of_its_own() -> None:
    out: list[str] = []
    events: list[SurfaceEvent] = [
        Asked("Why?"),
        Committed((1,), text="<think>Fi"),
        Provisional((2,), (0.9,), "rst.</think>An"),
        Corrected(1),
        Committed((2, 3), text="rst.</think>"),
        Committed((4,), text="An answer <"),
        Ended(Finish.STOP),
    ]
    tell(JsonView(out.append, folding()), events)
    lines = [json.loads(line) for line in out]
    apart = [(line["event"], line.get("reasoning"), line.get("text")) for line in lines]
    assert apart == [
        ("asked", None, None),
        ("committed", "Fi", ""),
        ("provisional", None, None),
        ("corrected", None, None),
        ("committed", "rst.", ""),
        ("committed", "", "An answer <"),
        ("ended", "", ""),
    ]
    assert (lines[2]["provisional_reasoning"], lines[2]["provisional"]) == ("rst.", "An")
