"""Answers that ended without the server, while the user is asked for the next question."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from moa_client.chat.display.page import TerminalPage
from moa_client.chat.display.screen import Screen
from moa_client.chat.messages import first_cut_words
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
    Earlier,
    Ended,
    Provisional,
    Refused,
    Settled,
)
from moa_shared.errors import ContextLengthError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.text.word_wrap import wrap_words

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

    def end_alone(self) -> None:
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
    chat.end_alone()
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
    chat.end_alone()
    with chat.page.below(chat):
        chat.page.leave_room(SIZE[1])
        chat.decide(Earlier(Committed((1,), 1)), Earlier(Corrected(1)), Earlier(Committed((3, 4))), CORRECTED)
    assert [chat.lines[0], *chat.lines[-2:]] == [
        "sure guessed wrong",
        "here was right.) From the sentence that changes:",
        "sure guessed right more",
    ]


async def test_a_refused_answer_stays_as_it_is() -> None:
    chat = Chat()
    chat.end_alone()
    chat.decide(Refused(ContextLengthError("Too long.")))
    assert chat.lines[0] == "sure guessed wrong"
    assert chat.display.dim.strip() == "guessed wrong"
    assert "The server refuses to check" in chat.lines[1]


async def test_an_earlier_answer_is_corrected_above_the_one_that_is_written_now() -> None:
    chat = Chat()
    chat.end_alone()
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
