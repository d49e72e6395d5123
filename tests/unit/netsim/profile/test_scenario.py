"""Scenarios: profile, trace and events become schedules."""

from __future__ import annotations

from netsim.core.link import Direction, Drop, Reason, Release
from netsim.core.timeline import EventKind, parse_timed_event
from netsim.profile import profiles
from netsim.profile.scenario import Scenario
from netsim.trace.formats import parse_csv


def test_events_reach_the_schedules() -> None:
    events = tuple(map(parse_timed_event, ["1:blackhole:1:up", "3:hold:1", "5:change:wired:2"]))
    links = Scenario(profiles.load("perfect"), extra_events=events).models()
    assert links[Direction.UP].admit(100, 1.5) == Drop(Reason.OUTAGE)
    assert links[Direction.DOWN].admit(100, 1.5) == Release(1.5, 0.0, 0.0)
    held = links[Direction.DOWN].admit(100, 3.5)
    assert isinstance(held, Release)
    assert held.t == 4.0
    assert links[Direction.UP].schedule.at(8.0).rate_bps == 50e6
    assert 0.0 < links[Direction.UP].schedule.at(6.0).delay.effective().mean_ms < 4.5


def test_the_timeline_of_the_profile_is_played() -> None:
    links = Scenario(profiles.load("lte-train")).models()
    assert links[Direction.UP].schedule.cut_at(31.0)
    assert links[Direction.DOWN].schedule.held_until(8.1) == 8.4


def test_a_trace_drives_and_the_profile_fills_in() -> None:
    trace = parse_csv("t_s,down_mbps,loss,rtt_ms\n0,5,,\n1,,0.5,80\n", "t")
    down = Scenario(profiles.load("4g"), trace=trace).models()[Direction.DOWN].schedule
    assert [down.at(t).rate_bps for t in (0.5, 1.5, 9.0)] == [5e6, 20e6, 20e6]
    assert down.at(0.5).loss.mean == 0.001
    assert down.at(1.5).loss.mean == 0.5
    assert down.at(1.5).delay.effective() == (40.0, 0.0)
    up = Scenario(profiles.load("4g"), trace=trace).models()[Direction.UP].schedule
    assert up.at(0.5).rate_bps == 20e6


def test_a_looped_trace_repeats_rows_and_events() -> None:
    trace = parse_csv("t_s,down_mbps,event\n0,5,\n1,6,blackhole:0.5\n", "t")
    scenario = Scenario(profiles.load("perfect"), trace=trace, loop=True)
    down = scenario.models()[Direction.DOWN].schedule
    assert down.at(101.5).rate_bps == 6e6
    assert down.cut_at(101.2)
    assert not down.cut_at(101.7)
    assert scenario.events()[0].kind is EventKind.BLACKHOLE
