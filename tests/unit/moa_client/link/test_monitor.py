"""The timer that decides that the server is gone, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable

from moa_client.link.monitor import (
    BEAT_EVERY_MS,
    LEAST_TIMEOUT_MS,
    MOST_HOLD_UPS,
    MOST_LATE_MS,
    TIMEOUT_ROUND_TRIPS,
    TRUSTED_AFTER_MS,
    LinkLosses,
    LinkMonitor,
)


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


# ---------------------------------------------------------------- machines and links that jitter


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


def test_a_link_is_trusted_until_it_is_lost_and_again_after_a_while() -> None:
    losses = LinkLosses()
    assert losses.is_trusted(0.0)
    losses.add(5_000.0, 2_000.0)
    assert not losses.is_trusted(5_000.0 + TRUSTED_AFTER_MS - 1)
    assert losses.is_trusted(5_000.0 + TRUSTED_AFTER_MS)
