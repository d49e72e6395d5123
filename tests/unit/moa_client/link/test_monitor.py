"""The timer that decides that the server is gone, in virtual time."""

from __future__ import annotations

from moa_client.link.monitor import FIRST_RTT_MS, LEAST_TIMEOUT_MS, TIMEOUT_ROUND_TRIPS, LinkMonitor


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


def test_a_server_that_thinks_for_long_answers_beats() -> None:
    monitor = opened(60.0)
    now, returning = 0.0, list[tuple[float, int]]()
    while now < 5000.0:  # not one frame but the answers to beats, 60 ms after each
        while returning and returning[0][0] <= now:
            at, answered = returning.pop(0)
            monitor.on_frame(at)
            assert monitor.on_beat(at, answered) == 60.0
        assert not monitor.is_lost(now)
        if (stamp := monitor.take_beat(now)) is not None:
            returning.append((now + 60.0, stamp))
        now += 1.0


def test_a_server_that_answers_only_beats_is_stuck_in_the_end() -> None:
    monitor = LinkMonitor(silence_ms=2000.0)
    monitor.on_opened(0.0, 20.0)
    monitor.expect(0.0)
    for now in range(0, 2000, 10):
        monitor.on_frame(float(now))
        assert not monitor.is_stuck(float(now))
    assert monitor.is_stuck(2000.0)
    assert not monitor.is_lost(2000.0)
    monitor.on_progress(2000.0)
    assert not monitor.is_stuck(3999.0)
    monitor.rest()
    assert not monitor.is_stuck(1e9)


def test_it_wakes_when_the_server_is_stuck() -> None:
    monitor = LinkMonitor(silence_ms=100.0)
    monitor.on_opened(0.0, 500.0)
    monitor.expect(0.0)
    assert monitor.take_beat(0.0) is not None
    assert monitor.wake_ms(can_beat=True) == 100.0


def test_beats_are_rare_while_frames_come() -> None:
    monitor = opened(20.0)
    beats = 0
    for now in range(0, 10_000, 50):
        monitor.on_frame(float(now))
        beats += monitor.take_beat(float(now)) is not None
    assert 9 <= beats <= 11


def test_a_device_that_was_held_up_reads_its_frames_before_it_takes_the_server_for_lost() -> None:
    monitor = opened(20.0)
    monitor.on_frame(1000.0)
    monitor.on_wake(1400.0, late_ms=325.0)
    assert not monitor.is_lost(1400.0)
    assert monitor.take_beat(1400.0) is not None
    monitor.on_wake(1800.0, late_ms=325.0)
    assert monitor.is_lost(1800.0)  # once for each silence
    monitor.on_frame(2000.0)
    monitor.on_wake(2400.0, late_ms=325.0)
    assert not monitor.is_lost(2400.0 + monitor.timeout_ms / 2 - 1)
    assert monitor.is_lost(2400.0 + monitor.timeout_ms / 2)


def test_a_device_that_wakes_up_almost_in_time_is_not_patient() -> None:
    monitor = opened(20.0)
    monitor.on_frame(1000.0)
    monitor.on_wake(1160.0, late_ms=10.0)
    assert monitor.is_lost(1160.0)


def test_nothing_expected_nothing_lost() -> None:
    monitor = opened(20.0)
    monitor.rest()
    assert not monitor.is_lost(1e9)
    assert monitor.take_beat(1e9) is None
    assert monitor.wake_ms(can_beat=True) is None
    monitor.expect(2e9)
    assert not monitor.is_lost(2e9 + 100)


def test_before_anything_is_measured_a_slow_link_is_given_its_time() -> None:
    monitor = LinkMonitor()
    monitor.expect(0.0)
    assert monitor.rtt_ms is None
    assert monitor.timeout_ms == TIMEOUT_ROUND_TRIPS * FIRST_RTT_MS


def test_beats_that_were_never_sent_measure_nothing() -> None:
    monitor = opened(20.0)
    assert monitor.on_beat(5.0, 77) is None
    assert monitor.rtt_ms == 20.0
