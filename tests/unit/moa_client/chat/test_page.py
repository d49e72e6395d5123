"""What a chat shows on a terminal: the answer, the status below it, and earlier answers while the user types."""

from collections.abc import Sequence

import pytest
from moa_client.chat.messages import FIRST_CUT_WORDS
from moa_client.chat.page import TerminalPage, make_page
from moa_client.chat.screen import Screen, wrap_words
from moa_client.conversation.answer_text import AnswerText
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
    Earlier,
    Ended,
    Event,
    LinkChanged,
    LinkState,
    Provisional,
    Refused,
    ServerChanged,
    Settled,
)
from moa_shared.errors import ContextLengthError
from moa_shared.protocol.finish_rule import Finish

from tests.support.answer_events import Told
from tests.support.terminal import Display

SIZE = (70, 12)
WORDS = ["sure ", "guessed ", "wrong ", "right ", "more"]
CORRECTED = Settled((1, 3, 4), AnswerOutcome.CORRECTED, Finish.STOP, 2, 1)


def decode(tokens: Sequence[int]) -> str:
    return "".join(WORDS[token] for token in tokens)


class Chat:
    """A page, and a prompt that lets it be drawn when it asks for that."""

    def __init__(self) -> None:
        self.display = Display(*SIZE)
        self.is_typed_into = False
        self.page = TerminalPage(Screen(*SIZE), lambda: SIZE, self.display.show, clock=lambda: 0.0)
        self.page.status = self.status
        self.told = Told(decode, "why?")

    def request(self) -> None:
        self.display.show(self.page.draw())

    @staticmethod
    def status(reason: str, text: AnswerText | None) -> str:
        return " ".join(filter(None, ["status", reason, "guesses" if text is not None and text.provisional else ""]))

    def tell(self, event: Event) -> None:
        self.page.show(self.told.tell(event), self.told.text)

    def end_standalone(self) -> None:
        """`sure` is committed, `guessed wrong` is not."""
        self.page.begin()
        for event in (Committed((0,)), Provisional((1, 2)), Ended(Finish.MAX_TOKENS, provisional=True)):
            self.tell(event)
        self.page.end(self.told.text)

    def decide(self, *events: Earlier | Settled | Refused) -> None:
        for event in events:
            self.page.show_earlier(self.told.tell(event), self.told.text)

    @property
    def lines(self) -> list[str]:
        explained = [line for less in (0, 1) for line in wrap_words(FIRST_CUT_WORDS, SIZE[0] - less).split("\n")]
        return [line for line in self.display.text.split("\n") if line and line not in explained]


async def test_a_refused_answer_stays_as_it_is_and_who_is_typing_is_told_what_has_changed_instead() -> None:
    chat = Chat()
    chat.end_standalone()
    chat.decide(Refused(ContextLengthError("Too long.")))
    assert (chat.lines[0], chat.display.dim.strip()) == ("sure guessed wrong", "guessed wrong")
    assert "The server refuses to check" in chat.lines[1]
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
    assert (chat.lines[0], chat.lines[-1]) == ("sure guessed wrong", "sure guessed right more")


async def test_an_earlier_answer_is_corrected_above_the_one_that_is_written_now() -> None:
    chat = Chat()
    chat.end_standalone()
    chat.page.adopt("> next")
    now = Told(decode, number=2)
    chat.page.begin()
    chat.page.show(now.tell(Provisional((4,))), now.text)
    chat.decide(Earlier(Committed((1,), 1)), Earlier(Corrected(1)), Earlier(Committed((3,))))
    assert chat.lines == ["sure guessed right", "> next", "more", "status guesses"]
    chat.page.forget([chat.told.text])
    chat.page.end(now.text)
    chat.page.close()
    assert chat.lines == ["sure guessed right", "> next", "more"]


async def test_a_status_is_below_while_the_answer_runs_and_remarks_are_said_under_it() -> None:
    chat = Chat()
    chat.page.begin()
    assert chat.lines == ["status"]
    replaced = ServerChanged("model", "HOST serves other now: this conversation is kept.")
    for event in (Committed((0,)), LinkChanged(LinkState.OFFLINE, "cut."), Provisional((1,))):
        chat.tell(event)
    assert chat.lines == ["sure guessed", "status cut. guesses"]
    chat.tell(LinkChanged(LinkState.BACK))
    chat.tell(replaced)
    assert chat.lines == ["sure guessed", f"({replaced.message})", "status guesses"]
    chat.page.end(chat.told.text)
    assert chat.lines == ["sure guessed", f"({replaced.message})"]


def test_only_a_terminal_that_moves_its_cursor_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for terminal, has_page in (("dumb", False), ("xterm", True)):
        monkeypatch.setenv("TERM", terminal)
        assert (make_page(lambda: SIZE, print) is not None) == has_page
