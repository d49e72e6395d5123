"""What an answer cost."""

from __future__ import annotations

from moa_client.conversation.answer_figures import Figures
from moa_client.conversation.events import Committed, Corrected, Ended, Provisional
from moa_shared.protocol.finish_rule import Finish


def test_speed_is_that_of_what_is_shown() -> None:
    figures = Figures()
    figures.on_event(Committed((1, 2)), 1.0)
    figures.on_event(Provisional((3, 4, 5, 6)), 2.0)
    assert figures.tokens_per_second == 3.0
    figures.on_event(Committed((3, 4), confirmed=2), 2.0)
    assert (figures.tokens, figures.undecided, figures.tokens_per_second) == (4, 2, 3.0)
    figures.on_event(Corrected(2), 2.0)
    figures.on_event(Committed((9,)), 2.5)
    assert (figures.tokens, figures.undecided, figures.provisional) == (5, 0, 4)
    assert figures.tokens_per_second == 2.0
    figures.on_event(Ended(Finish.MAX_TOKENS), 2.5)
    assert figures.finish is Finish.MAX_TOKENS


def test_a_standalone_answer_has_no_verifications() -> None:
    figures = Figures()
    figures.on_event(Provisional((1, 2, 3)), 1.5)
    assert (figures.tokens_per_second, figures.acceptance_length) == (2.0, 0.0)


def test_figures_of_an_answer_without_a_server_say_nothing_of_one() -> None:
    figures = Figures(up_bytes=1542)
    figures.on_event(Provisional((1, 2, 3)), 1.5)
    assert figures.line() == (
        "3 tokens in 1.50 s, 2.0 tokens/s, first after 1500 ms, 3 written on this device, 3 of them unverified"
    )
    figures.verdicts = 1
    figures.on_event(Committed((1, 2, 3), confirmed=3), 2.0)
    assert figures.line() == (
        "3 tokens in 2.00 s, 1.5 tokens/s, first after 1500 ms, 3.00 tokens a verification (1 steps), "
        "514 bytes up and 0 down a token, 0.0 ms of this device's CPU a token, 3 written on this device"
    )
