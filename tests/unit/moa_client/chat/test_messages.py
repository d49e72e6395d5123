from __future__ import annotations

from moa_client.chat.messages import status_line
from moa_client.conversation.answer_figures import LinkStatus
from moa_client.conversation.events import LinkState


def test_before_the_first_answer_there_is_the_link_alone() -> None:
    assert status_line(LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)) == "link good"


def test_everything_that_is_known_is_said() -> None:
    status = LinkStatus(LinkState.SLOW, 151.4, 12.34, 0.56, 1234, 45_600)
    assert status_line(status) == "link slow | RTT 151 ms | 12.3 tokens/s | 56 % drafted here | 1.2 kB up, 45.6 kB down"


def test_answers_are_unverified_until_the_server_is_there_to_verify_them() -> None:
    away, there = (LinkStatus(state, None, 0.0, 0.0, 0, 0) for state in (LinkState.OFFLINE, LinkState.GOOD))
    assert status_line(away, 2, "the server is silent") == "link OFFLINE (the server is silent) | 2 answers unverified"
    assert status_line(there, 2) == "link good | verifying 2 answers"
    assert status_line(there, 1) == "link good | verifying 1 answer"


def test_what_waits_for_the_next_prompt_is_counted() -> None:
    good = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)
    assert status_line(good, typed_ahead=7) == "link good | 7 typed ahead"
