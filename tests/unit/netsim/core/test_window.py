"""The congestion window: growth, losses, time-outs, pauses."""

from __future__ import annotations

import pytest
from netsim.core.stream import BETA, INITIAL_SEGMENTS, MAX_SEGMENTS, MSS, Window


def test_slow_start_adds_what_is_acknowledged() -> None:
    window = Window(0.05)
    for i in range(10):
        window.on_ack(MSS, 0.05, 0.05 + i * 1e-4, limited=True)
    assert window.segments == 20.0


def test_what_does_not_use_the_window_does_not_widen_it() -> None:
    window = Window(0.05)
    window.on_ack(MSS, 0.05, 0.05, limited=False)
    assert window.segments == INITIAL_SEGMENTS


def test_a_loss_takes_three_tenths() -> None:
    window = Window(0.05)
    window.segments = 100.0
    window.on_loss()
    assert window.segments == pytest.approx(100.0 * BETA)


def test_cubic_comes_back_to_its_peak() -> None:
    window = Window(0.2)
    window.segments = 100.0
    window.on_loss()
    # K = ((100 - 70) / 0.4) ** (1 / 3) = 4.2 s (RFC 9438).
    t = 0.0
    while t < 4.2:
        t += 0.2
        for _ in range(int(window.segments)):
            window.on_ack(MSS, 0.2, t, limited=True)
    assert window.segments == pytest.approx(100.0, rel=0.05)


def test_time_outs_double_and_an_acknowledgement_ends_that() -> None:
    window = Window(0.05)
    first = window.rto_s
    assert first == pytest.approx(0.25)
    window.on_timeout()
    window.on_timeout()
    assert window.rto_s == pytest.approx(4 * first)
    assert window.segments == 1.0
    window.on_ack(MSS, 0.05, 1.0, limited=True)
    assert window.rto_s == pytest.approx(first, rel=0.05)


def test_a_pause_brings_the_window_back() -> None:
    window = Window(0.05)
    window.segments = 80.0
    window.on_idle(0.1)
    assert window.segments == 80.0
    window.on_idle(60.0)
    assert window.segments == INITIAL_SEGMENTS


def test_a_rising_round_trip_ends_slow_start() -> None:
    window = Window(0.05)
    window.segments = 20.0
    for i in range(40):
        window.on_ack(MSS, 0.05 + (0.02 if i > 10 else 0.0), i * 0.002, limited=True)
    assert window.threshold < 100.0


def test_the_window_has_an_end() -> None:
    window = Window(0.05)
    for i in range(5000):
        window.on_ack(MSS, 0.05, i * 1e-3, limited=True)
    assert window.segments <= MAX_SEGMENTS + 1
