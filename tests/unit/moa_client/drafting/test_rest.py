"""When the device rests because the server drafts."""

from __future__ import annotations

from moa_client.drafting.rest import QUIET_VERDICTS, TRIAL_TOKENS, DraftingRest
from moa_shared.protocol.messages import Verdict

SERVER_DRAFTED = Verdict(1, 10, 0, (1, 2), drafted=3, server_drafted=3, server_accepted=1)
PLAIN = Verdict(1, 10, 0, (1,))


def rest_after(*verdicts: Verdict, may_rest: bool = True) -> DraftingRest:
    rest = DraftingRest(may_rest=may_rest)
    for verdict in verdicts:
        rest.on_verdict(verdict)
    return rest


def test_the_device_drafts_until_the_server_has_drafted() -> None:
    assert not rest_after().rests
    assert not rest_after(PLAIN, PLAIN).rests
    assert rest_after(PLAIN, SERVER_DRAFTED).rests


def test_the_device_drafts_again_when_the_server_has_stopped() -> None:
    assert rest_after(SERVER_DRAFTED, *[PLAIN] * (QUIET_VERDICTS - 1)).rests
    assert not rest_after(SERVER_DRAFTED, *[PLAIN] * QUIET_VERDICTS).rests
    assert rest_after(SERVER_DRAFTED, *[PLAIN] * QUIET_VERDICTS, SERVER_DRAFTED).rests


def test_now_and_then_the_device_rests_to_see_whether_the_server_has_time() -> None:
    rest = rest_after(*[PLAIN] * (TRIAL_TOKENS - 1))
    assert not rest.rests
    rest.on_verdict(PLAIN)
    rests = []
    for _ in range(TRIAL_TOKENS + QUIET_VERDICTS):
        rests.append(rest.rests)
        rest.on_verdict(PLAIN)
    assert rests == [True] * QUIET_VERDICTS + [False] * TRIAL_TOKENS
    assert rest.rests


def test_a_device_that_may_not_rest_always_drafts() -> None:
    assert not rest_after(SERVER_DRAFTED, may_rest=False).rests
    assert not rest_after(*[PLAIN] * 2 * TRIAL_TOKENS, may_rest=False).rests
