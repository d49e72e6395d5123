"""Schedules: capacity over changing rates, holds, outages, ramps, repetition, overrides."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netsim.core.conditions import Bernoulli, Conditions, ConditionSchedule

FAST, SLOW, STOPPED = Conditions(rate_bps=1e6), Conditions(rate_bps=1e5), Conditions(rate_bps=0.0)


def test_bits_are_sent_at_the_rate_of_their_time() -> None:
    schedule = ConditionSchedule([(0.0, FAST), (1.0, SLOW)])
    assert schedule.finish(0.0, 5e5) == 0.5
    # Half a second at 1 Mbit/s, and the rest at a tenth of it.
    assert schedule.finish(0.5, 6e5) == pytest.approx(2.0)

    # A rate of zero waits for the next one; no limit takes no time.
    assert ConditionSchedule([(0.0, STOPPED), (2.0, FAST)]).finish(0.5, 1e6) == pytest.approx(3.0)
    assert ConditionSchedule([(0.0, STOPPED)]).finish(0.0, 1.0) == math.inf
    assert ConditionSchedule([(0.0, Conditions())]).finish(3.0, 1e12) == 3.0


def test_a_hold_stops_sending() -> None:
    schedule = ConditionSchedule([(0.0, FAST)])
    schedule.hold(1.0, 1.5)
    assert [schedule.finish(0.5, 1e6), schedule.finish(1.2, 1e5)] == pytest.approx([2.0, 1.6])
    assert [schedule.held_until(t) for t in (1.2, 1.5)] == [1.5, 1.5]
    schedule.hold(1.4, 3.0)  # overlapping ones join
    assert schedule.held_until(1.1) == 3.0
    unlimited = ConditionSchedule([(0.0, Conditions())])
    unlimited.hold(1.0, math.inf)
    assert unlimited.finish(2.0, 8.0) == math.inf
    unlimited.heal(3.0)
    assert unlimited.finish(3.0, 8.0) == 3.0


def test_an_outage_has_its_edges() -> None:
    schedule = ConditionSchedule([(0.0, FAST)])
    schedule.blackhole(1.0, 2.0)
    assert [schedule.cut_at(t) for t in (0.999, 1.0, 1.999, 2.0)] == [False, True, True, False]
    schedule.heal(1.5)
    assert [schedule.cut_at(t) for t in (1.4, 1.6)] == [True, False]
    schedule.forget(10.0)
    assert not schedule.cut_at(1.4)


def test_a_cycle_repeats() -> None:
    schedule = ConditionSchedule([(0.0, FAST), (1.0, SLOW)], period_s=2.0)
    assert [schedule.at(t) for t in (0.5, 1.5, 2.5, 3.5, 200.5)] == [FAST, SLOW, FAST, SLOW, FAST]
    assert schedule.next_change(3.5) == 4.0


def test_a_ramp_goes_from_one_to_the_other() -> None:
    schedule = ConditionSchedule([(0.0, FAST)])
    schedule.replace(1.0, SLOW, 1.0)
    rates = [schedule.at(t).rate_bps for t in (0.9, 1.05, 1.5, 1.95, 2.0)]
    assert (rates[0], rates[-1]) == (1e6, 1e5)
    assert rates == sorted(set(rates), reverse=True)
    repeating = ConditionSchedule([(0.0, FAST), (5.0, STOPPED)], period_s=6.0)
    repeating.replace(1.0, SLOW)  # forgets what was to come
    assert [repeating.at(t) for t in (5.5, 100.0)] == [SLOW, SLOW]


def test_an_override_holds_now_and_later() -> None:
    schedule = ConditionSchedule([(0.0, FAST), (1.0, SLOW)], period_s=2.0)
    lossy = Bernoulli(0.5)
    schedule.override(0.5, lambda conditions: replace(conditions, loss=lossy))
    assert schedule.at(0.4) == FAST
    for t in (0.5, 1.5, 2.5, 99.5):
        assert schedule.at(t).loss == lossy
    assert schedule.at(0.6).rate_bps == 1e6
    assert schedule.at(3.5).rate_bps == 1e5


@given(
    rates=st.lists(st.sampled_from([0.0, 1e4, 1e5, 1e6]), min_size=1, max_size=6),
    holds=st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 2.0)), max_size=3),
    start=st.floats(0.0, 6.0),
    bits=st.floats(1.0, 1e6),
    more=st.floats(0.0, 1e6),
)
def test_more_bits_never_finish_earlier(
    rates: list[float], holds: list[tuple[float, float]], start: float, bits: float, more: float
) -> None:
    schedule = ConditionSchedule([(float(i), Conditions(rate_bps=rate)) for i, rate in enumerate(rates)])
    for at, length in holds:
        schedule.hold(at, at + length)
    first = schedule.finish(start, bits)
    assert start <= first <= schedule.finish(start, bits + more)
    assert first == math.inf or schedule.held_until(first) == first or any(a < first <= a + b for a, b in holds)
