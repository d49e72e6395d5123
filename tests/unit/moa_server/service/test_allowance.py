from __future__ import annotations

import pytest
from moa_server.service.allowance import BURST_US, FRAME_US, NODE_US, SHARE, Allowance


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_free() -> None:
    allowance = Allowance(Clock())
    for _ in range(int(BURST_US / FRAME_US)):
        allowance.charge(0, 0)
    assert allowance.pause_seconds == 0.0


def test_over_time_a_stream_takes_its_share_of_the_loop() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    handled = 0
    while clock.now < 100.0:
        allowance.charge(0, 99)
        handled += 1
        clock.now += allowance.pause_seconds
    assert handled * (FRAME_US + 99 * NODE_US) == pytest.approx(100e6 * SHARE + BURST_US, rel=0.01)


def test_time_without_frames_is_not_saved_up_beyond_the_burst() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    clock.now = 1e6
    allowance.charge(0, int(2 * BURST_US))
    assert allowance.pause_seconds == pytest.approx((BURST_US + FRAME_US) / 1e6 / SHARE)
    clock.now += allowance.pause_seconds
    assert allowance.pause_seconds == pytest.approx(0.0)


def test_an_honest_client_is_never_held_back() -> None:
    """Two hundred drafts of eight nodes, acks, credits and beats a second, after an Open of 131,072 tokens."""
    clock = Clock()
    allowance = Allowance(clock)
    allowance.charge(3 * 131_072, 0)
    for _ in range(10_000):
        allowance.charge(80, 8)
        allowance.charge(10, 0)
        clock.now += 0.005
        assert allowance.pause_seconds == 0.0
