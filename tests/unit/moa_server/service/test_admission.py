"""What calls cost, and which refusals have a line in the log."""

import pytest
from moa_server.service.admission import (
    ADDRESS_TIMES,
    BURST_US,
    CALL_US,
    FRAME_US,
    MINUTE,
    MOST_KEPT,
    MOST_KINDS,
    MOST_LINES,
    OTHERS,
    SHARE,
    TOGETHER_US,
    Allowance,
    Allowances,
    RefusalLog,
    address_times,
)

from tests.support.counted import Clock

BURST_SECONDS = BURST_US / (1e6 * SHARE)


def test_an_address_begins_twice_as_many_calls_as_it_may_make() -> None:
    clock = Clock()
    allowance = Allowance(clock, address_times(30_000))
    begun = 0
    while clock.now < 100.0:
        allowance.charge_us(CALL_US)
        begun += 1
        clock.now += allowance.pause_seconds
    assert begun == pytest.approx(2 * 500 * (100 + BURST_SECONDS), rel=0.01)
    assert address_times(1) == ADDRESS_TIMES
    allowance = Allowance(clock, address_times(0))  # any number
    allowance.charge_us(1e12)
    assert allowance.pause_seconds == 0.0
    assert allowance.is_full


def test_after_a_pause_several_frames_are_handled_together() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    allowance.charge(0, int(BURST_US))
    clock.now += allowance.pause_seconds
    for _ in range(int(TOGETHER_US / FRAME_US)):
        assert allowance.pause_seconds == pytest.approx(0.0)
        allowance.charge(0, 0)


def test_time_without_frames_is_not_saved_up_beyond_the_burst() -> None:
    clock = Clock()
    allowance = Allowance(clock)
    clock.now = 1e6
    allowance.charge(0, int(2 * BURST_US))
    assert allowance.pause_seconds == pytest.approx((BURST_US + FRAME_US + TOGETHER_US) / 1e6 / SHARE)
    clock.now += allowance.pause_seconds
    assert allowance.pause_seconds == pytest.approx(0.0)


def test_an_honest_client_is_never_held_back() -> None:
    """Two hundred drafts of eight nodes, fifty credits and twenty beats a second, after an Open of 131,072 tokens."""
    clock = Clock()
    allowance = Allowance(clock)
    allowance.charge(3 * 131_072, 0)
    allowance.charge_us(CALL_US)
    for draft in range(10_000):
        allowance.charge(80, 8)
        if draft % 4 == 0:
            allowance.charge(10, 0)
        if draft % 10 == 0:
            allowance.charge(10, 0, replies=True)
        clock.now += 0.005
        assert allowance.pause_seconds == 0.0


def test_allowances_that_are_full_again_are_forgotten_and_others_are_not() -> None:
    clock = Clock()
    allowances = Allowances(clock)
    for peer in range(MOST_KEPT):
        allowances.of(str(peer)).charge_us(CALL_US)
    clock.now += 1e3
    owing = allowances.of("7")
    for _ in range(1000):
        owing.charge_us(CALL_US)
    assert allowances.of("another").pause_seconds == 0.0
    assert allowances.of("7") is owing
    assert len(allowances._kept) == 2


def test_a_few_of_a_kind_are_logged_and_the_rest_counted() -> None:
    refusals = RefusalLog()
    logged = sum(refusals.is_worth_a_line("rate_limit", "key alice", 0.01 * each) for each in range(2000))
    assert logged == MOST_LINES
    assert refusals.is_worth_a_line("rate_limit", "key bob", 20.0)
    assert refusals.is_worth_a_line("mismatch", "key alice", 20.0)
    assert refusals.take_left_out(MINUTE - 1.0) == []
    assert refusals.take_left_out(MINUTE) == [{"code": "rate_limit", "owner": "key alice", "count": 2000 - MOST_LINES}]
    assert refusals.take_left_out(2 * MINUTE) == []
    assert refusals.is_worth_a_line("rate_limit", "key alice", 2 * MINUTE)


def test_a_flood_from_many_addresses_is_bounded_too() -> None:
    refusals = RefusalLog()
    logged = sum(refusals.is_worth_a_line("authentication", f"ipv4:{each}", 0.0) for each in range(10_000))
    assert logged == MOST_KINDS + MOST_LINES
    assert refusals.take_left_out(MINUTE) == [{"code": "authentication", "owner": OTHERS, "count": 10_000 - logged}]
