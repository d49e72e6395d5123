"""Where a recording has nothing."""

from __future__ import annotations

from moa_bench.cut.outages import Outage, outages
from netsim.trace.trace import Row, Trace


def test_rows_without_rate_are_an_outage_together() -> None:
    rates = [8.0, 8.0, 8.0, 0.0, 0.0, 4.0, 0.0]
    trace = Trace(tuple(Row(float(second), rate) for second, rate in enumerate(rates)))
    assert outages(trace) == [Outage(3.0, 2.0), Outage(6.0, 1.0)]


def test_a_moment_is_none_and_neither_is_the_begin_of_a_recording() -> None:
    trace = Trace((Row(0.0, 0.0), Row(1.0, 8.0), Row(3.0, 0.0), Row(3.4, 8.0)))
    assert outages(trace) == []


def test_a_rate_that_the_recording_leaves_out_is_the_links_own() -> None:
    assert outages(Trace((Row(0.0, 8.0), Row(3.0), Row(5.0, 8.0)))) == []
