"""What the screen shows, and whether it fits the final answer."""

from moa_bench.harness.split_client import AnswerScreen
from moa_client.conversation.events import Committed, Corrected, Ended, LinkChanged, LinkState, Provisional
from moa_shared.protocol.finish_rule import Finish


def shown(*events: object) -> AnswerScreen:
    screen = AnswerScreen()
    for number, event in enumerate(events):
        screen.on_event(event, float(number))  # type: ignore[arg-type]
    return screen


def test_provisional_text_that_is_confirmed_is_not_new() -> None:
    screen = shown(
        Committed((1, 2)),
        LinkChanged(LinkState.OFFLINE),
        Provisional((3, 4, 5)),
        Committed((3, 4), confirmed=2),
        Corrected(1),
        Committed((6,)),
        Ended(Finish.END_OF_TEXT),
    )
    assert screen.fits((1, 2, 3, 4, 6))
    assert [(moment.at_s, moment.length, moment.committed, moment.is_new) for moment in screen.moments] == [
        (0.0, 2, 2, True), (2.0, 5, 2, True), (3.0, 5, 4, False), (4.0, 4, 4, False), (5.0, 5, 5, True),
    ]  # fmt: skip
    assert screen.decided_s == [0.0, 3.0, 5.0]


def test_lost_or_doubled_text_is_seen() -> None:
    assert not shown(Committed((1,)), Committed((1, 2)), Ended(Finish.END_OF_TEXT)).fits((1, 2))
    assert not shown(Committed((1,)), Committed((3,)), Ended(Finish.END_OF_TEXT)).fits((1, 2, 3))
    assert not shown(Committed((1,)), Provisional((2,)), Ended(Finish.END_OF_TEXT)).fits((1,))


def test_contradictions_are_seen() -> None:
    for events in (
        (Provisional((1, 2)), Committed((1, 3), confirmed=2), Corrected(0), Ended(Finish.END_OF_TEXT)),
        (Provisional((1, 2)), Committed((1, 3), confirmed=1), Corrected(1), Ended(Finish.END_OF_TEXT)),
        (Provisional((1, 2)), Corrected(1), Committed((1, 3)), Ended(Finish.END_OF_TEXT)),
    ):
        assert not shown(*events).fits((1, 3))


def test_an_answer_that_ended_standalone_is_held_against_what_was_committed_then() -> None:
    screen = shown(Committed((1, 2)), Provisional((9,)), Ended(Finish.MAX_TOKENS, provisional=True))
    assert screen.fits((1, 2, 3))
    assert not screen.fits((1, 4, 3))
