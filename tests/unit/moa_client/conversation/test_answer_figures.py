"""What an answer cost."""

from __future__ import annotations

import pytest
from moa_client.conversation.answer_figures import Figures, SessionFigures, drafted_words
from moa_client.conversation.events import AnswerOutcome, Committed, Corrected, Earlier, Ended, Provisional, Settled
from moa_shared.protocol.finish_rule import Finish


@pytest.mark.parametrize(
    ("by_server", "by_device", "words"),
    [
        (0.404, 0.216, "62 % drafted: 40 % by the server, 22 % here"),
        (0.404, 0.004, "40 % drafted by the server"),
        (0.0, 0.216, "22 % drafted here"),
        (0.0, 0.0, "not drafted"),
    ],
)
def test_who_drafted_is_said_and_what_is_nil_is_not(by_server: float, by_device: float, words: str) -> None:
    assert drafted_words(by_server, by_device) == words


def test_figures_of_an_answer_without_a_server_say_nothing_of_one() -> None:
    figures = Figures(up_bytes=1542)
    figures.on_event(Provisional((1, 2, 3)), 1.5)
    assert figures.line() == ("3 tokens in 1.5 s (2.0 tokens/s), first after 1.5 s; alone 3 tokens, not checked yet")
    figures.verdicts = 1
    figures.on_event(Committed((1, 2, 3), confirmed=3), 2.0)
    assert figures.line() == (
        "3 tokens in 2.0 s (1.5 tokens/s), first after 1.5 s; not drafted; 0 bytes down; alone 3 tokens, 3 kept"
    )
    assert figures.details() == (
        "3.00 tokens a verification (1 steps), 514 bytes up and 0 down a token, 0.0 ms of this device's CPU a token"
    )


def test_what_was_right_is_counted_when_the_server_has_checked_it() -> None:
    session = SessionFigures()
    first = session.begin()
    for event in (Committed((1,)), Provisional((2, 3, 4)), Ended(Finish.MAX_TOKENS, provisional=True)):
        session.on_event(event, 1.0)
    second = session.begin()
    session.on_event(Earlier(Committed((2,), 1)), 7.0)
    session.on_event(Earlier(Corrected(2)), 7.0)
    session.on_event(Settled((2, 9), AnswerOutcome.CORRECTED, Finish.MAX_TOKENS), 7.0)
    session.on_event(Provisional((5,)), 8.0)
    assert (first.provisional, first.kept, first.undecided) == (3, 1, 0)
    assert (second.provisional, second.kept, second.undecided) == (1, 0, 1)
    assert session.lines().split("\n")[1] == "this session: alone 4 tokens, 1 kept, 1 not checked yet"
    session.on_event(Ended(Finish.STOP, provisional=True), 8.0)
    session.rewind(0)
    session.begin()
    session.on_event(Earlier(Committed((5,), 1)), 9.0)  # of a conversation that is forgotten
    assert second.kept == 0
