"""Links from recordings, and where a recording has nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.links import EmulatedLink
from moa_bench.harness.recorded import Outage, outages, recorded_link, recording_of, served_from
from moa_shared.errors import ConfigError
from netsim.traces import Row, Trace

from tests.support.messages import raises


def test_a_recorded_link_has_the_delay_of_another_and_no_rate_of_its_own(tmp_path: Path) -> None:
    ride = tmp_path / "ride.csv"
    ride.write_text("t_s,down_mbps\n0,8\n2,0\n3,8\n")
    link = recorded_link(f"4g={ride}")
    assert link == EmulatedLink("4G, ride", 21.0, 19.0, recording=ride)
    assert recording_of(link).duration_s == 4.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("4G", snapshot("--trace 4G is not LINK=FILE. Write, for example, --trace 4G=drive.csv.")),
        (
            "RTT 0=x",
            snapshot(
                "There is no link 'RTT 0' to take the delay from. There are wired, 5G, 4G, RTT 50 ms, RTT 100 ms, RTT 150 ms, RTT 300 ms."
            ),
        ),
    ],
)
def test_a_recorded_link_needs_a_delay_and_a_file(given: str, message: str) -> None:
    with raises(ConfigError, message):
        recorded_link(given)


def test_a_question_is_asked_where_something_comes() -> None:
    trace = Trace((Row(0.0, 8.0), Row(2.0, 0.0), Row(4.0, 0.0), Row(5.0, 8.0), Row(8.0, 0.0)))
    assert [served_from(trace, share) for share in (0.0, 1 / 11, 3 / 11, 6 / 11)] == [0.0, 1.0, 5.0, 6.0]
    assert served_from(trace, 9 / 11) == 9.0  # nothing comes any more


def test_rows_without_rate_are_an_outage_together() -> None:
    rates = [8.0, 8.0, 8.0, 0.0, 0.0, 4.0, 0.0]
    trace = Trace(tuple(Row(float(second), rate) for second, rate in enumerate(rates)))
    assert outages(trace) == [Outage(3.0, 2.0), Outage(6.0, 1.0)]


def test_a_moment_is_none_and_neither_is_the_begin_of_a_recording() -> None:
    trace = Trace((Row(0.0, 0.0), Row(1.0, 8.0), Row(3.0, 0.0), Row(3.4, 8.0)))
    assert outages(trace) == []


def test_a_rate_that_the_recording_leaves_out_is_the_links_own() -> None:
    assert outages(Trace((Row(0.0, 8.0), Row(3.0), Row(5.0, 8.0)))) == []
