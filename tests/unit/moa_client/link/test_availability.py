"""Who decides the text, by table: each mode and event, with the mode that follows; and the timer that decides that the
server is gone, in virtual time.
"""

import random
from collections.abc import Callable

import pytest
from moa_client.conversation.events import LinkChanged, LinkState
from moa_client.link.availability import (
    NOTHING,
    SILENT_STREAM_MS,
    Availability,
    GiveUp,
    LinkCommand,
    Mode,
    Reaction,
    SendBeat,
)
from moa_client.link.monitor import (
    BEAT_EVERY_MS,
    LEAST_TIMEOUT_MS,
    MOST_HOLD_UPS,
    MOST_LATE_MS,
    TIMEOUT_ROUND_TRIPS,
    LinkMonitor,
)
from moa_shared.errors import RateLimitError, UnavailableError

SILENCE_MS = 60_000.0
PATIENCE_MS = 10_000.0
ROUND_TRIP_MS = 10.0
GONE = UnavailableError("The server has closed the connection.")
SILENT = LinkChanged(LinkState.OFFLINE, "the server is silent")
TOLD = (LinkChanged(LinkState.OFFLINE, GONE.message),)
LOST = Reaction((LinkCommand.GO_STANDALONE,), TOLD)


def tick(
    availability: Availability,
    now: float,
    *,
    is_up: bool = True,
    is_trying: bool = False,
    is_expected: bool = True,
    patience_ms: float | None = None,
) -> Reaction:
    return availability.tick(now, is_up=is_up, is_trying=is_trying, is_expected=is_expected, patience_ms=patience_ms)


def without_beats(reaction: Reaction) -> Reaction:
    return Reaction(tuple(each for each in reaction.commands if not isinstance(each, SendBeat)), reaction.events)


def availability_in(mode: Mode) -> Availability:
    """An availability that has come to this mode by itself, at time 1000 and later."""
    availability = Availability(SILENCE_MS)
    if mode is Mode.OFFLINE_BY_WISH:
        availability.go_offline()
        tick(availability, 1000.0)
        return availability
    availability.on_opened(1000.0, ROUND_TRIP_MS)
    availability.on_return(is_answering=True)
    tick(availability, 1000.0)
    if mode is Mode.SILENT:
        tick(availability, 1000.0 + LEAST_TIMEOUT_MS)
    elif mode is Mode.STALLED:
        availability.on_frame(1000.0 + SILENCE_MS, is_progress=False)
        tick(availability, 1000.0 + SILENCE_MS)
    elif mode is Mode.OFFLINE:
        availability.on_lost(GONE, broke=False, is_expected=True)
    assert availability.mode is mode
    return availability


@pytest.mark.parametrize(("mode", "seconds", "then", "reaction"), [
    (Mode.SERVED, 0.1, Mode.SERVED, NOTHING),
    (Mode.SERVED, 0.15, Mode.SILENT, Reaction((LinkCommand.GO_STANDALONE,), (SILENT,))),
    (Mode.SILENT, 0.6, Mode.SILENT, NOTHING), (Mode.SILENT, 0.65, Mode.OFFLINE, Reaction((LinkCommand.REOPEN,))),
    (Mode.STALLED, 60.1, Mode.STALLED, NOTHING), (Mode.STALLED, 60.65, Mode.OFFLINE, Reaction((LinkCommand.REOPEN,))),
    (Mode.OFFLINE_BY_WISH, 10.0, Mode.OFFLINE_BY_WISH, Reaction((LinkCommand.LEAVE,))),
])  # fmt: skip
def test_time_passes_with_a_silent_stream(mode: Mode, seconds: float, then: Mode, reaction: Reaction) -> None:
    availability = availability_in(mode)
    assert without_beats(tick(availability, 1000.0 + 1e3 * seconds)) == reaction
    assert availability.mode is then


@pytest.mark.parametrize(("mode", "is_progress", "is_back"), [
    (Mode.SERVED, True, False), (Mode.SILENT, True, True), (Mode.SILENT, False, True), (Mode.STALLED, True, True),
    (Mode.STALLED, False, False),
])  # fmt: skip
def test_a_frame_shows_that_the_server_is_back(mode: Mode, is_progress: bool, is_back: bool) -> None:
    availability = availability_in(mode)
    now = 1000.0 + (SILENCE_MS if mode is Mode.STALLED else LEAST_TIMEOUT_MS) + 1.0
    availability.on_frame(now, is_progress=is_progress)
    assert availability.is_back(now) is is_back


@pytest.mark.parametrize("mode", [mode for mode in Mode if mode is not Mode.SERVED])
@pytest.mark.parametrize(("is_answering", "state"), [(True, LinkState.BACK), (False, LinkState.GOOD)])
def test_the_server_decides_again_when_it_returns(mode: Mode, is_answering: bool, state: LinkState) -> None:
    availability = availability_in(mode)
    assert availability.on_return(is_answering=is_answering) == (LinkChanged(state),)
    assert availability.is_served


@pytest.mark.parametrize(("mode", "broke", "is_expected", "then", "reaction"), [
    (Mode.SERVED, False, True, Mode.OFFLINE, LOST), (Mode.SERVED, True, True, Mode.SERVED, NOTHING),
    (Mode.SERVED, False, False, Mode.SERVED, Reaction(events=TOLD)),
    (Mode.SILENT, True, True, Mode.OFFLINE, NOTHING), (Mode.STALLED, True, True, Mode.OFFLINE, NOTHING),
    (Mode.SILENT, False, True, Mode.OFFLINE, NOTHING), (Mode.OFFLINE, False, True, Mode.OFFLINE, NOTHING),
])  # fmt: skip
def test_a_stream_is_lost(mode: Mode, broke: bool, is_expected: bool, then: Mode, reaction: Reaction) -> None:
    availability = availability_in(mode)
    assert availability.on_lost(GONE, broke=broke, is_expected=is_expected) == reaction
    assert availability.mode is then


@pytest.mark.parametrize("mode", Mode)
def test_a_silent_stream_may_recover_before_an_answer_ends(mode: Mode) -> None:
    availability = availability_in(mode)
    availability.outages.observe(100_000.0, is_served=availability.is_served)
    assert availability.may_end_answers(100_000.0) is (mode not in (Mode.SERVED, Mode.SILENT))


def test_a_link_lost_a_moment_ago_may_recover_before_an_answer_ends() -> None:
    availability = Availability(SILENCE_MS, 10_000.0)
    availability.on_opened(1000.0, ROUND_TRIP_MS)
    availability.on_return(is_answering=True)
    tick(availability, 1000.0)
    availability.on_lost(GONE, broke=False, is_expected=True)
    tick(availability, 1000.0, is_up=False, is_trying=True)
    availability.outages.on_failed(10_900.0)
    tick(availability, 11_000.0, is_up=False, is_trying=True)
    assert not availability.may_end_answers(11_000.0)  # an attempt is under way, and may succeed
    assert availability.wake_ms(is_up=False, patience_ms=None) is None  # it will be heard of
    availability.outages.on_failed(11_300.0)
    tick(availability, 11_300.0, is_up=False, is_trying=True)
    assert availability.may_end_answers(11_300.0)
    availability.on_opened(12_000.0, ROUND_TRIP_MS)
    availability.on_return(is_answering=True)
    tick(availability, 12_000.0)
    assert not availability.may_end_answers(12_000.0)


def given_up(reaction: Reaction) -> list[str]:
    return [each.error.message for each in reaction.commands if isinstance(each, GiveUp)]


class TestADeviceThatCannotWriteOn:
    def test_waits_for_as_long_as_the_user_does(self) -> None:
        availability = availability_in(Mode.OFFLINE)
        availability.error = None
        assert given_up(tick(availability, 2000.0, is_up=False, patience_ms=PATIENCE_MS)) == []
        assert availability.wake_ms(is_up=False, patience_ms=PATIENCE_MS) == 2000.0 + PATIENCE_MS
        assert given_up(tick(availability, 1999.0 + PATIENCE_MS, is_up=False, patience_ms=PATIENCE_MS)) == []
        late = tick(availability, 2000.0 + PATIENCE_MS, is_up=False, patience_ms=PATIENCE_MS)
        assert given_up(late) == ["The server has sent nothing for 10 s."]

    def test_waits_for_an_attempt_that_is_under_way(self) -> None:
        availability = availability_in(Mode.OFFLINE)
        tick(availability, 2000.0, is_up=False, is_trying=True, patience_ms=PATIENCE_MS)
        for late, said in ((2100.0 + PATIENCE_MS, []), (2101.0 + PATIENCE_MS, [GONE.message])):
            assert given_up(tick(availability, late, is_up=False, is_trying=True, patience_ms=PATIENCE_MS)) == said
            assert availability.wake_ms(is_up=False, patience_ms=PATIENCE_MS) is None
            availability.outages.on_failed(late)


class TestWaking:
    def test_a_silent_stream_is_replaced_in_time(self) -> None:
        availability = availability_in(Mode.SILENT)
        now = 1000.0 + LEAST_TIMEOUT_MS
        for _ in range(100):
            wake = availability.wake_ms(is_up=True, patience_ms=None)
            assert wake is not None
            now = max(now, wake)
            if LinkCommand.REOPEN in tick(availability, now).commands:
                break
        assert now <= 1000.0 + LEAST_TIMEOUT_MS + 2 * SILENT_STREAM_MS


@pytest.mark.parametrize(("before", "step_ms", "after"), [
    (LinkState.GOOD, 2.0, LinkState.SLOW), (LinkState.GOOD, 3.0, LinkState.GOOD),
    (LinkState.SLOW, 3.0, LinkState.SLOW), (LinkState.SLOW, 4.0, LinkState.GOOD),
    (LinkState.OFFLINE, 2.0, LinkState.OFFLINE),
])  # fmt: skip
def test_a_link_is_slow_when_a_round_trip_takes_many_steps(before: LinkState, step_ms: float, after: LinkState) -> None:
    availability = availability_in(Mode.SERVED)
    assert availability.monitor.rtt_ms == ROUND_TRIP_MS
    availability.state = before
    assert availability.grade(step_ms) == ((LinkChanged(after),) if after is not before else ())
    assert availability.state is after


LIMITED = RateLimitError("The server lets this key read and write 600 tokens a minute.")


def test_a_server_that_is_gone_after_the_wait_is_lost() -> None:
    availability = availability_in(Mode.SERVED)
    availability.on_told_to_wait(2000.0, LIMITED, 12_000.0)
    assert availability.on_lost(GONE, broke=False, is_expected=True) == Reaction(events=TOLD)
    tick(availability, 15_000.0, is_up=False, is_trying=True)
    availability.outages.on_failed(15_000.0)
    assert availability.may_end_answers(15_000.0)


def test_patience_begins_when_the_wait_is_over() -> None:
    availability = availability_in(Mode.SERVED)
    availability.on_told_to_wait(2000.0, LIMITED, 600_000.0)
    until = 602_000.0 + PATIENCE_MS
    assert tick(availability, 2000.0, is_up=False, patience_ms=PATIENCE_MS) == NOTHING
    assert availability.wake_ms(is_up=False, patience_ms=PATIENCE_MS) == until
    assert tick(availability, until - 1.0, is_up=False, patience_ms=PATIENCE_MS) == NOTHING
    assert tick(availability, until, is_up=False, patience_ms=PATIENCE_MS) == Reaction((GiveUp(LIMITED),))


def opened(rtt_ms: float) -> LinkMonitor:
    monitor = LinkMonitor()
    monitor.on_opened(0.0, rtt_ms)
    monitor.expect(0.0)
    return monitor


def test_silence_is_a_lost_link_after_four_round_trips_and_at_least_150_ms() -> None:
    for rtt_ms, timeout_ms in ((1.0, LEAST_TIMEOUT_MS), (100.0, 400.0)):
        monitor = opened(rtt_ms)
        assert monitor.timeout_ms == timeout_ms
        monitor.on_frame(1000.0)
        assert not monitor.is_lost(1000.0 + timeout_ms - 1)
        assert monitor.is_lost(1000.0 + timeout_ms)


def test_a_server_whose_steps_are_long_is_not_asked_for_a_beat_before_its_second_frame() -> None:
    monitor = opened(1.0)
    monitor.on_frame(1000.0)
    monitor.on_progress(1000.0)
    monitor.on_step(100.0)
    assert monitor.take_beat(1149.0) is None
    assert monitor.take_beat(1150.0) is not None


def test_a_device_that_was_held_up_reads_its_frames_before_it_takes_the_server_for_lost() -> None:
    monitor = opened(20.0)
    monitor.on_frame(1000.0)
    monitor.on_wake(1400.0, late_ms=325.0)
    assert not monitor.is_lost(1400.0)
    assert monitor.take_beat(1400.0) is not None
    assert not monitor.is_lost(1400.0 + monitor.timeout_ms / 2 - 1)
    assert monitor.is_lost(1400.0 + monitor.timeout_ms / 2)


def test_a_device_that_is_always_held_up_notices_a_lost_link_all_the_same() -> None:
    monitor = opened(20.0)
    for began in (1000.0, 9000.0):
        now, hold_ups = began, 0
        monitor.on_frame(now)
        while not monitor.is_lost(now):
            now += 400.0
            hold_ups += 1
            monitor.on_wake(now, late_ms=325.0)
        assert hold_ups == MOST_HOLD_UPS + 1


def losses(delay_ms: Callable[[], float], gap_ms: Callable[[], float], seconds: int, monitor: LinkMonitor) -> int:
    """How often the timer runs out while a server that is alive sends frames and answers beats, one after the other."""
    lost, was_lost = 0, False
    arrivals = list[tuple[float, int]]()  # of answers to beats
    last_ms, frame_ms = 0.0, gap_ms()
    for now in map(float, range(1000 * seconds)):
        if now >= frame_ms:
            monitor.on_frame(now)
            monitor.on_progress(now)
            frame_ms = now + gap_ms()
        while arrivals and arrivals[0][0] <= now:
            monitor.on_frame(now)
            monitor.on_beat(now, arrivals.pop(0)[1])
        is_lost = monitor.is_lost(now)
        lost += is_lost and not was_lost
        was_lost = is_lost
        if (stamp := monitor.take_beat(now)) is not None:
            last_ms = max(last_ms, now + delay_ms())
            arrivals.append((last_ms, stamp))
    return lost


def test_a_busy_machine_is_not_a_lost_link() -> None:
    chance = random.Random(7)

    def delay_ms() -> float:  # a program that others stop now and then, for up to 0.4 s
        return chance.uniform(100.0, 400.0) if chance.random() < 0.3 else chance.uniform(1.0, 20.0)

    def gap_ms() -> float:
        return chance.uniform(200.0, 900.0) if chance.random() < 0.2 else chance.uniform(10.0, 60.0)

    monitor = opened(10.0)
    learning = losses(delay_ms, gap_ms, 10, monitor)
    assert learning <= 4
    monitor = opened(10.0)
    assert losses(delay_ms, gap_ms, 120, monitor) <= learning + 2


def test_a_timer_that_has_learned_from_late_answers_is_bounded_and_forgets() -> None:
    monitor = opened(2.0)
    now = 1000.0
    for _ in range(20):  # each beat is answered after an outage of 5 s
        stamp = monitor.take_beat(now)
        assert stamp is not None
        now += 5000.0
        monitor.on_beat(now, stamp)
    rtt_ms = monitor.rtt_ms
    assert rtt_ms is not None
    assert monitor.timeout_ms <= TIMEOUT_ROUND_TRIPS * rtt_ms + MOST_LATE_MS
    for _ in range(120):
        monitor.on_frame(now)
        now += BEAT_EVERY_MS
        stamp = monitor.take_beat(now)
        assert stamp is not None
        monitor.on_beat(now + 2.0, stamp)
    monitor.on_opened(now, 2.0)
    assert monitor.timeout_ms == LEAST_TIMEOUT_MS
