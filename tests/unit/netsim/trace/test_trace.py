"""What a row says goes before the profile, what it leaves out is the profile's; a trace begins at 0."""

from __future__ import annotations

import pytest
from netsim.core.conditions import Bernoulli, Conditions, DelaySpec
from netsim.core.link import Direction
from netsim.core.timeline import EventKind
from netsim.errors import TraceError
from netsim.trace.trace import Row, Trace, from_zero

PROFILE = Conditions(rate_bps=5e6, delay=DelaySpec(30.0, 4.0), loss=Bernoulli(0.01))


def test_a_row_changes_what_it_names_in_its_direction() -> None:
    trace = Trace((Row(0.0, down_mbps=20.0, loss=0.5), Row(1.0, up_mbps=2.0, rtt_ms=80.0)))
    (start, down), (later, still) = trace.points(Direction.DOWN, PROFILE)
    assert (start, later) == (0.0, 1.0)
    assert (down.rate_bps, down.delay, down.loss) == (20e6, PROFILE.delay, Bernoulli(0.5))
    assert (still.rate_bps, still.loss) == (PROFILE.rate_bps, PROFILE.loss)  # not those of the row before
    [(_, up), (_, slow)] = trace.points(Direction.UP, PROFILE)
    assert (up.rate_bps, slow.rate_bps) == (PROFILE.rate_bps, 2e6)


def test_half_of_a_recorded_round_trip_is_each_ways_delay_without_more_variation() -> None:
    [(_, row)] = Trace((Row(0.0, rtt_ms=80.0),)).points(Direction.UP, PROFILE)
    effective = row.delay.effective()
    assert effective.mean_ms == pytest.approx(40.0)
    assert effective.deviation_ms == 0.0


def test_the_last_row_lasts_as_long_as_the_one_before_it() -> None:
    assert Trace((Row(0.0), Row(2.0), Row(5.0))).duration_s == 8.0
    assert Trace((Row(0.0),)).duration_s == 1.0


def test_rows_carry_events_at_their_time() -> None:
    trace = Trace((Row(0.0), Row(2.0, event="blackhole:1.5:up"), Row(3.0, event="reset")))
    first, second = trace.events
    assert (first.at_s, first.kind, first.duration_s, first.directions) == (2.0, EventKind.BLACKHOLE, 1.5, ("up",))
    assert (second.at_s, second.kind) == (3.0, EventKind.RESET)


def test_a_recording_is_moved_to_zero() -> None:
    trace = from_zero([Row(1e9 + 0.1, down_mbps=1.0), Row(1e9 + 0.35, up_mbps=2.0)], ["corrected"])
    assert [row.t_s for row in trace.rows] == [0.0, 0.25]
    assert (trace.rows[0].down_mbps, trace.rows[1].up_mbps, trace.remarks) == (1.0, 2.0, ("corrected",))


def test_a_trace_can_begin_in_the_middle_of_a_row() -> None:
    trace = Trace((Row(0.0, 8.0), Row(2.0, 4.0, event="blackhole:1.5:up"), Row(5.0, 2.0, event="reset")))
    later = trace.since(3.5)
    assert later.rows == (Row(0.0, 4.0), Row(1.5, 2.0, event="reset"))
    assert trace.since(2.0).rows == (Row(0.0, 4.0, event="blackhole:1.5:up"), Row(3.0, 2.0, event="reset"))
    assert trace.since(0.0) == trace
    assert trace.since(7.9).rows == (Row(0.0, 2.0),)


def test_a_trace_cannot_begin_after_its_end() -> None:
    with pytest.raises(TraceError, match="lasts 8 s: it cannot begin at 8 s"):
        Trace((Row(0.0), Row(2.0), Row(5.0))).since(8.0)
