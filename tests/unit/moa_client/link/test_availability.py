"""Who decides the text, by table: each mode and event, with the mode that follows and what is to be done."""

from __future__ import annotations

import pytest
from moa_client.conversation.events import LinkChanged, LinkState
from moa_client.link.availability import SILENT_STREAM_MS, Availability, GiveUp, LinkStep, Mode, SendBeat, Steps
from moa_client.link.monitor import LEAST_TIMEOUT_MS
from moa_shared.errors import ProtocolError, RateLimitError, UnavailableError

SILENCE_MS = 60_000.0
PATIENCE_MS = 10_000.0
ROUND_TRIP_MS = 10.0
GONE = UnavailableError("The server has closed the connection.")
WRONG = ProtocolError("a verdict", "nonsense")
SILENT = LinkChanged(LinkState.OFFLINE, "the server is silent")


def tick(
    presence: Availability,
    now: float,
    *,
    is_up: bool = True,
    is_trying: bool = False,
    is_expected: bool = True,
    patience_ms: float | None = None,
) -> Steps:
    return presence.tick(now, is_up=is_up, is_trying=is_trying, is_expected=is_expected, patience_ms=patience_ms)


def without_beats(steps: Steps) -> Steps:
    return [step for step in steps if not isinstance(step, SendBeat)]


def presence_in(mode: Mode) -> Availability:
    """A presence that has come to this mode by itself, at time 1000 and later."""
    presence = Availability(SILENCE_MS)
    if mode is Mode.OFFLINE_BY_WISH:
        presence.go_offline()
        tick(presence, 1000.0)
        return presence
    presence.on_opened(1000.0, ROUND_TRIP_MS)
    presence.on_return(is_answering=True)
    tick(presence, 1000.0)
    if mode is Mode.SILENT:
        tick(presence, 1000.0 + LEAST_TIMEOUT_MS)
    elif mode is Mode.STALLED:
        presence.on_frame(1000.0 + SILENCE_MS, is_progress=False)
        tick(presence, 1000.0 + SILENCE_MS)
    elif mode is Mode.OFFLINE:
        presence.on_down(GONE, broke=False, is_expected=True)
    assert presence.mode is mode
    return presence


@pytest.mark.parametrize(
    ("mode", "seconds", "then", "steps"),
    [
        (Mode.SERVED, 0.1, Mode.SERVED, []),
        (Mode.SERVED, 0.15, Mode.SILENT, [LinkStep.GO_STANDALONE, SILENT]),
        (Mode.SILENT, 0.6, Mode.SILENT, []),
        (Mode.SILENT, 0.65, Mode.OFFLINE, [LinkStep.REOPEN]),
        (Mode.STALLED, 60.1, Mode.STALLED, []),
        (Mode.STALLED, 60.65, Mode.OFFLINE, [LinkStep.REOPEN]),
        (Mode.OFFLINE_BY_WISH, 10.0, Mode.OFFLINE_BY_WISH, [LinkStep.LEAVE]),
    ],
)
def test_time_passes_with_a_silent_stream(mode: Mode, seconds: float, then: Mode, steps: Steps) -> None:
    presence = presence_in(mode)
    assert without_beats(tick(presence, 1000.0 + 1e3 * seconds)) == steps
    assert presence.mode is then


@pytest.mark.parametrize("mode", [Mode.OFFLINE, Mode.OFFLINE_BY_WISH])
def test_nothing_is_due_without_a_stream(mode: Mode) -> None:
    presence = presence_in(mode)
    assert tick(presence, 1e6, is_up=False) == []
    assert presence.mode is mode


def test_a_stream_that_was_never_opened_is_lost_by_the_same_timer() -> None:
    presence = Availability(SILENCE_MS)
    tick(presence, 0.0, is_up=False, is_trying=True)
    assert tick(presence, 5000.0, is_up=False, is_trying=True) == [LinkStep.GO_STANDALONE, SILENT]
    assert presence.mode is Mode.OFFLINE


def test_a_stream_that_has_broken_before_the_timer_ran_out_is_lost_for_that_reason() -> None:
    presence = presence_in(Mode.SERVED)
    assert presence.on_down(GONE, broke=True, is_expected=True) == []
    steps = tick(presence, 1000.0 + LEAST_TIMEOUT_MS, is_up=False, is_trying=True)
    assert steps == [LinkStep.GO_STANDALONE, LinkChanged(LinkState.OFFLINE, GONE.message)]


def test_nothing_is_lost_while_nothing_is_expected() -> None:
    presence = presence_in(Mode.SERVED)
    assert tick(presence, 1e6, is_expected=False) == []
    assert presence.mode is Mode.SERVED


@pytest.mark.parametrize(
    ("mode", "is_progress", "is_back"),
    [
        (Mode.SERVED, True, False),
        (Mode.SILENT, True, True),
        (Mode.SILENT, False, True),
        (Mode.STALLED, True, True),
        (Mode.STALLED, False, False),
    ],
)
def test_a_frame_shows_that_the_server_is_back(mode: Mode, is_progress: bool, is_back: bool) -> None:
    presence = presence_in(mode)
    now = 1000.0 + (SILENCE_MS if mode is Mode.STALLED else LEAST_TIMEOUT_MS) + 1.0
    presence.on_frame(now, is_progress=is_progress)
    assert presence.is_back(now) is is_back


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.SERVED])
@pytest.mark.parametrize(("is_answering", "state"), [(True, LinkState.BACK), (False, LinkState.GOOD)])
def test_the_server_decides_again_when_it_returns(mode: Mode, is_answering: bool, state: LinkState) -> None:
    presence = presence_in(mode)
    assert presence.on_return(is_answering=is_answering) == [LinkStep.RETURN, LinkChanged(state)]
    assert presence.is_served


def test_a_return_that_was_no_loss_only_updates_the_state() -> None:
    presence = presence_in(Mode.SERVED)
    assert presence.on_return(is_answering=True) == []
    presence.on_down(GONE, broke=False, is_expected=False)
    assert presence.on_return(is_answering=True) == [LinkChanged(LinkState.GOOD)]


@pytest.mark.parametrize(
    ("mode", "broke", "is_expected", "then", "steps"),
    [
        (
            Mode.SERVED,
            False,
            True,
            Mode.OFFLINE,
            [LinkStep.GO_STANDALONE, LinkChanged(LinkState.OFFLINE, GONE.message)],
        ),
        (Mode.SERVED, True, True, Mode.SERVED, []),
        (Mode.SERVED, False, False, Mode.SERVED, [LinkChanged(LinkState.OFFLINE, GONE.message)]),
        (Mode.SILENT, True, True, Mode.OFFLINE, []),
        (Mode.STALLED, True, True, Mode.OFFLINE, []),
        (Mode.SILENT, False, True, Mode.OFFLINE, []),
        (Mode.OFFLINE, False, True, Mode.OFFLINE, []),
    ],
)
def test_a_stream_is_lost(mode: Mode, broke: bool, is_expected: bool, then: Mode, steps: Steps) -> None:
    presence = presence_in(mode)
    assert presence.on_down(GONE, broke=broke, is_expected=is_expected) == steps
    assert presence.mode is then


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.OFFLINE_BY_WISH])
def test_the_user_goes_offline_and_online_again(mode: Mode) -> None:
    presence = presence_in(mode)
    presence.go_offline()
    steps = without_beats(tick(presence, 1500.0))
    expected = [LinkStep.LEAVE, LinkStep.GO_STANDALONE, LinkChanged(LinkState.OFFLINE, "as requested")]
    assert steps == (expected if mode is Mode.SERVED else [LinkStep.LEAVE])
    assert presence.mode is Mode.OFFLINE_BY_WISH
    presence.go_online()
    assert presence.mode.name == "OFFLINE"
    assert tick(presence, 1500.0, is_up=False, is_trying=True) == []
    assert presence.may_end_answers(100_000.0)


def test_going_offline_and_online_at_once_changes_nothing() -> None:
    presence = presence_in(Mode.SERVED)
    presence.go_offline()
    presence.go_online()
    assert without_beats(tick(presence, 1001.0)) == []
    assert presence.is_served


def test_a_server_that_violates_the_protocol_is_left_until_the_user_connects_again() -> None:
    presence = presence_in(Mode.SERVED)
    assert presence.distrust(WRONG) == [LinkStep.GO_STANDALONE, LinkChanged(LinkState.OFFLINE, WRONG.message)]
    assert tick(presence, 1001.0) == [LinkStep.LEAVE]
    assert presence.mode is Mode.OFFLINE_BY_WISH
    assert presence.error is WRONG


def test_another_stream_can_be_asked_for() -> None:
    presence = presence_in(Mode.SILENT)
    presence.replace_stream()
    assert without_beats(tick(presence, 1200.0)) == [LinkStep.REOPEN]
    assert without_beats(tick(presence, 1201.0, is_up=False, is_trying=True)) == []


@pytest.mark.parametrize(
    ("mode", "may_end"),
    [
        (Mode.SERVED, False),
        (Mode.SILENT, False),
        (Mode.STALLED, True),
        (Mode.OFFLINE, True),
        (Mode.OFFLINE_BY_WISH, True),
    ],
)
def test_a_silent_stream_may_recover_before_an_answer_ends(mode: Mode, may_end: bool) -> None:
    presence = presence_in(mode)
    presence.outages.observe(100_000.0, is_served=presence.is_served)
    assert presence.may_end_answers(100_000.0) is may_end


def test_a_link_lost_a_moment_ago_may_recover_before_an_answer_ends() -> None:
    presence = Availability(SILENCE_MS, 10_000.0)
    presence.on_opened(1000.0, ROUND_TRIP_MS)
    presence.on_return(is_answering=True)
    tick(presence, 1000.0)
    presence.on_down(GONE, broke=False, is_expected=True)
    tick(presence, 1000.0, is_up=False, is_trying=True)
    assert not presence.may_end_answers(10_999.0)
    assert presence.wake_ms(is_up=False, patience_ms=None) == 11_000.0
    tick(presence, 11_000.0, is_up=False, is_trying=True)
    assert presence.may_end_answers(11_000.0)
    assert presence.wake_ms(is_up=False, patience_ms=None) is None
    presence.on_opened(12_000.0, ROUND_TRIP_MS)
    presence.on_return(is_answering=True)
    tick(presence, 12_000.0)
    assert not presence.may_end_answers(12_000.0)


def test_who_goes_offline_by_wish_waits_for_nobody() -> None:
    presence = Availability(SILENCE_MS, 10_000.0)
    presence.go_offline()
    tick(presence, 1000.0)
    assert presence.may_end_answers(1000.0)


def given_up(steps: Steps) -> list[str]:
    return [step.error.message for step in steps if isinstance(step, GiveUp)]


class TestADeviceThatCannotWriteOn:
    def test_waits_for_as_long_as_the_user_does(self) -> None:
        presence = presence_in(Mode.OFFLINE)
        presence.error = None
        assert given_up(tick(presence, 2000.0, is_up=False, patience_ms=PATIENCE_MS)) == []
        assert presence.wake_ms(is_up=False, patience_ms=PATIENCE_MS) == 2000.0 + PATIENCE_MS
        assert given_up(tick(presence, 1999.0 + PATIENCE_MS, is_up=False, patience_ms=PATIENCE_MS)) == []
        late = tick(presence, 2000.0 + PATIENCE_MS, is_up=False, patience_ms=PATIENCE_MS)
        assert given_up(late) == ["The server has sent nothing for 10 s."]

    def test_gets_the_reason_of_the_loss(self) -> None:
        presence = presence_in(Mode.OFFLINE)
        tick(presence, 2000.0, is_up=False, patience_ms=PATIENCE_MS)
        late = tick(presence, 2000.0 + PATIENCE_MS, is_up=False, patience_ms=PATIENCE_MS)
        assert given_up(late) == [GONE.message]

    def test_does_not_wait_when_the_user_wants_no_server(self) -> None:
        presence = presence_in(Mode.OFFLINE_BY_WISH)
        assert given_up(tick(presence, 2000.0, is_up=False, patience_ms=PATIENCE_MS)) == [
            "Without a server this device cannot answer."
        ]

    def test_does_not_wait_for_a_server_that_has_stalled_for_as_long(self) -> None:
        presence = presence_in(Mode.STALLED)
        steps = tick(presence, 1001.0 + SILENCE_MS, patience_ms=PATIENCE_MS)
        assert given_up(steps) == ["The server has sent nothing for 60 s."]

    def test_is_patient_again_after_progress(self) -> None:
        presence = presence_in(Mode.OFFLINE)
        tick(presence, 2000.0, is_up=False, patience_ms=PATIENCE_MS)
        presence.on_frame(3000.0, is_progress=True)
        assert given_up(tick(presence, 2000.0 + PATIENCE_MS, is_up=False, patience_ms=PATIENCE_MS)) == []

    def test_is_not_told_to_give_up_while_it_can_write(self) -> None:
        presence = presence_in(Mode.OFFLINE)
        tick(presence, 2000.0, is_up=False, patience_ms=PATIENCE_MS)
        assert tick(presence, 2000.0 + PATIENCE_MS, is_up=False) == []


class TestWaking:
    def test_a_silent_server_is_noticed_in_time(self) -> None:
        presence = presence_in(Mode.SERVED)
        now = 1000.0
        while presence.is_served:
            wake = presence.wake_ms(is_up=True, patience_ms=None)
            assert wake is not None
            assert wake > now
            now = wake
            tick(presence, now)
        assert now == 1000.0 + LEAST_TIMEOUT_MS

    def test_a_silent_stream_is_replaced_in_time(self) -> None:
        presence = presence_in(Mode.SILENT)
        now = 1000.0 + LEAST_TIMEOUT_MS
        for _ in range(100):
            wake = presence.wake_ms(is_up=True, patience_ms=None)
            assert wake is not None
            now = max(now, wake)
            if LinkStep.REOPEN in tick(presence, now):
                break
        assert now <= 1000.0 + LEAST_TIMEOUT_MS + 2 * SILENT_STREAM_MS

    def test_nobody_wakes_for_a_lost_stream(self) -> None:
        assert presence_in(Mode.OFFLINE).wake_ms(is_up=False, patience_ms=None) is None

    def test_a_beat_is_sent_before_the_timer_runs_out(self) -> None:
        presence = presence_in(Mode.SERVED)
        presence.on_frame(1010.0, is_progress=True)
        wake = presence.wake_ms(is_up=True, patience_ms=None)
        assert wake is not None
        assert wake < 1010.0 + LEAST_TIMEOUT_MS
        assert any(isinstance(step, SendBeat) for step in tick(presence, wake))


@pytest.mark.parametrize(
    ("before", "step_ms", "after"),
    [
        (LinkState.GOOD, 2.0, LinkState.SLOW),
        (LinkState.GOOD, 3.0, LinkState.GOOD),
        (LinkState.SLOW, 3.0, LinkState.SLOW),
        (LinkState.SLOW, 4.0, LinkState.GOOD),
        (LinkState.OFFLINE, 2.0, LinkState.OFFLINE),
        (LinkState.BACK, 2.0, LinkState.BACK),
    ],
)
def test_a_link_is_slow_when_a_round_trip_takes_many_steps(before: LinkState, step_ms: float, after: LinkState) -> None:
    presence = presence_in(Mode.SERVED)
    assert presence.monitor.rtt_ms == ROUND_TRIP_MS
    presence.state = before
    assert presence.grade(step_ms) == ([LinkChanged(after)] if after is not before else [])
    assert presence.state is after


def test_a_link_is_good_again_once_everything_is_verified() -> None:
    presence = presence_in(Mode.OFFLINE)
    presence.on_return(is_answering=True)
    assert presence.on_verified() == [LinkChanged(LinkState.GOOD)]
    assert presence.on_verified() == []


LIMITED = RateLimitError("The server lets this key read and write 600 tokens a minute.")
SAID = LinkChanged(LinkState.WAITING, LIMITED.message, 12.0)


def test_a_server_that_lets_the_client_wait_is_not_lost() -> None:
    presence = presence_in(Mode.SERVED)
    assert presence.on_told_to_wait(2000.0, LIMITED, 12_000.0) == [LinkStep.GO_STANDALONE, SAID]
    for now in (3000.0, 13_900.0):
        assert tick(presence, now, is_up=False, is_trying=True) == []
        assert not presence.may_end_answers(now)
    assert presence.on_told_to_wait(14_000.0, LIMITED, 12_000.0) == [SAID]  # another time: the countdown begins again
    presence.on_opened(26_000.0, ROUND_TRIP_MS)
    assert presence.on_return(is_answering=True) == [LinkStep.RETURN, LinkChanged(LinkState.GOOD)]
    assert presence.is_served


def test_a_server_that_is_gone_after_the_wait_is_lost() -> None:
    presence = presence_in(Mode.SERVED)
    presence.on_told_to_wait(2000.0, LIMITED, 12_000.0)
    steps = presence.on_down(GONE, broke=False, is_expected=True)
    assert steps == [LinkChanged(LinkState.OFFLINE, GONE.message)]
    tick(presence, 15_000.0, is_up=False, is_trying=True)
    assert presence.may_end_answers(15_000.0)


def test_patience_begins_when_the_wait_is_over() -> None:
    presence = presence_in(Mode.SERVED)
    presence.on_told_to_wait(2000.0, LIMITED, 600_000.0)
    until = 602_000.0 + PATIENCE_MS
    assert tick(presence, 2000.0, is_up=False, patience_ms=PATIENCE_MS) == []
    assert presence.wake_ms(is_up=False, patience_ms=PATIENCE_MS) == until
    assert tick(presence, until - 1.0, is_up=False, patience_ms=PATIENCE_MS) == []
    assert tick(presence, until, is_up=False, patience_ms=PATIENCE_MS) == [GiveUp(LIMITED)]


def test_a_wish_to_be_offline_ends_the_wait() -> None:
    presence = presence_in(Mode.SERVED)
    presence.on_told_to_wait(2000.0, LIMITED, 12_000.0)
    presence.go_offline()
    steps = tick(presence, 2500.0, is_up=False, is_trying=True)
    assert steps == [LinkStep.LEAVE, LinkChanged(LinkState.OFFLINE, "as requested")]
