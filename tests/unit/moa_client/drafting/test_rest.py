"""When the device rests because the server drafts."""

from __future__ import annotations

from moa_client.drafting.online import LONE_TIMES, PATIENT_VERDICTS, TRIAL_TOKENS, TRIAL_VERDICTS, DraftingRest
from moa_shared.protocol.messages import Verdict

SERVER_DRAFTED = Verdict(1, 10, 0, (1, 2), drafted=3, server_drafted=3, server_accepted=1)
PLAIN = Verdict(1, 10, 0, (1,))
SHARED = Verdict(1, 10, 0, (1,), shared=True)


def rest_after(*verdicts: Verdict, may_rest: bool = True, server_drafts: bool = True) -> DraftingRest:
    rest = DraftingRest(may_rest=may_rest)
    rest.on_opened(server_drafts=server_drafts)
    for verdict in verdicts:
        rest.on_verdict(verdict)
    return rest


def test_the_device_drafts_at_once_for_a_server_that_does_not() -> None:
    assert not rest_after(server_drafts=False).rests
    assert not rest_after(PLAIN, PLAIN, server_drafts=False).rests
    assert rest_after(PLAIN, SERVER_DRAFTED, server_drafts=False).rests  # one that did not say that it would


def test_a_server_that_has_nothing_to_guess_is_left_alone() -> None:
    assert rest_after(*[PLAIN] * 2 * PATIENT_VERDICTS).rests
    assert rest_after(SERVER_DRAFTED, *[PLAIN] * 2 * PATIENT_VERDICTS).rests


def test_a_server_that_has_stopped_guessing_is_noticed_though_nobody_shares_it() -> None:
    """Its drafter has failed, or it is older and does not say which forwards are shared."""
    for server_drafts in (True, False):
        rest = rest_after(SERVER_DRAFTED, *[PLAIN] * (LONE_TIMES * PATIENT_VERDICTS - 1), server_drafts=server_drafts)
        assert rest.rests
        rest.on_verdict(PLAIN)
        assert not rest.rests
        rest.on_verdict(SERVER_DRAFTED)
        assert rest.rests


def test_the_device_drafts_again_when_the_server_has_no_time_for_it() -> None:
    assert rest_after(SERVER_DRAFTED, *[SHARED] * (PATIENT_VERDICTS - 1)).rests
    assert not rest_after(SERVER_DRAFTED, *[SHARED] * PATIENT_VERDICTS).rests
    assert rest_after(SERVER_DRAFTED, *[SHARED] * PATIENT_VERDICTS, SERVER_DRAFTED).rests


def test_now_and_then_the_device_rests_to_see_whether_the_server_has_time() -> None:
    rest = rest_after(*[PLAIN] * (TRIAL_TOKENS - 1), server_drafts=False)
    assert not rest.rests
    rest.on_verdict(PLAIN)
    rests = []
    for _ in range(TRIAL_TOKENS + TRIAL_VERDICTS):
        rests.append(rest.rests)
        rest.on_verdict(PLAIN)
    assert rests == [True] * TRIAL_VERDICTS + [False] * TRIAL_TOKENS
    assert rest.rests


def test_a_device_that_may_not_rest_always_drafts() -> None:
    assert not rest_after(SERVER_DRAFTED, may_rest=False).rests
    assert not rest_after(*[PLAIN] * 2 * TRIAL_TOKENS, may_rest=False).rests
