"""Traces: what is written reads back, the place of what is malformed; a row goes before the profile."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from netsim.core.link import Direction
from netsim.errors import UsageError
from netsim.traces import Event, EventKind, Row, Trace, format_csv, parse_timed_event, parse_trace, read_trace

from tests.support.messages import raises

cells = st.none() | st.floats(0.0, 999.0).map(lambda value: float(f"{value:.6g}"))
rows = st.builds(
    Row, st.just(0.0), cells, cells, cells, st.none() | st.sampled_from([0.0, 0.01, 1.0]),
    st.sampled_from(["", "reset"]),
)  # fmt: skip


@given(st.lists(rows, min_size=1, max_size=20))
def test_csv_there_and_back(made: list[Row]) -> None:
    trace = Trace(tuple(replace(row, t_s=i / 8) for i, row in enumerate(made)))
    assert parse_trace(format_csv(trace), "t") == trace


GONE = "version 0.2.0 was the last that read traces of netem-trace and Mahimahi."


@pytest.mark.parametrize(("text", "place"), [
    ("a,b\n1,2\n", "line 1: the header has no column t_s"),
    ("t_s,speed\n0,1\n", "line 1, column 2: there is no column 'speed'"),
    ("t_s,loss\n0,0.1\n1,x\n", "line 3, column 2: 'x' is not a number"),
    ("t_s,loss\n0,2\n", "line 2, column 2: 2 is not between 0 and 1"),
    ("t_s,down_mbps\n1,1\n0,1\n", "line 3, column 1: time 0 does not come after 1"),
    ("t_s,down_mbps\n,1\n", "line 2, column 1: t_s is blank"),
    ("t_s,event\n0,quake\n", "line 2, column 2: 'quake' is not an event"),
])  # fmt: skip
def test_a_malformed_trace_names_its_place(text: str, place: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_trace(text, "my.csv")
    assert caught.value.message.startswith("my.csv")
    assert place in caught.value.message


def test_rows_of_one_time_are_merged() -> None:
    trace = parse_trace("t_s,down_mbps,up_mbps,event\n0,1,5,reset\n0,2,,\n1,3,,\n", "t.csv")
    assert trace.rows == (Row(0.0, 2.0, 5.0, event="reset"), Row(1.0, 3.0))
    assert parse_trace("0 1\n1 2\n1 4\n", "t").rows == (Row(0.0, 1.0), Row(1.0, 4.0))


@pytest.mark.parametrize(("content", "message"), [
    (None, snapshot("Trace TMP/t cannot be read: No such file or directory.")), (b"\n", snapshot("TMP/t is empty.")),
    (b"\xff\xfe\x00", snapshot("Trace TMP/t cannot be read: it is not text.")),
    (b'{"Bw": {}}', snapshot(f"TMP/t is JSON: {GONE}")), (b"1\n2\n", snapshot(f"TMP/t is a list of times: {GONE}")),
])  # fmt: skip
def test_unreadable_files(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "t").write_bytes(content)
    with raises(UsageError, message):
        read_trace(tmp_path / "t")


def test_recorded_traces_are_read(shared_dir: Path) -> None:
    folder = shared_dir / "traces"
    handover = read_trace(folder / "handover-lte-5g.csv", ignored=("network",))
    assert handover.duration_s == pytest.approx(614, abs=2)
    driving = read_trace(folder / "4g-driving-50096.txt")
    assert sum(row.down_mbps or 0.0 for row in driving.rows) / len(driving.rows) == pytest.approx(15, abs=1)
    assert read_trace(folder / "5g-driving-23.txt").rows[0] == Row(0.0, down_mbps=155.0)
    walking = read_trace(folder / "4g-walking-50007.txt")  # with a second that is there twice
    assert all(before.t_s < row.t_s for before, row in pairwise(walking.rows))


def test_the_last_row_lasts_as_long_as_the_one_before_it_and_rows_carry_events() -> None:
    trace = Trace((Row(0.0), Row(2.0, event="blackhole:1.5:up"), Row(5.0, event="reset")))
    assert (trace.duration_s, Trace((Row(0.0),)).duration_s) == (8.0, 1.0)
    assert trace.events == (parse_timed_event("2:blackhole:1.5:up"), parse_timed_event("5:reset"))


@pytest.mark.parametrize(("start_s", "rows"), [
    (0.0, (Row(0.0, 8.0), Row(2.0, 4.0, event="hold:1"), Row(5.0, 2.0, event="reset"))),
    (2.0, (Row(0.0, 4.0, event="hold:1"), Row(3.0, 2.0, event="reset"))),
    (3.5, (Row(0.0, 4.0), Row(1.5, 2.0, event="reset"))),
    (7.9, (Row(0.0, 2.0),)),
])  # fmt: skip
def test_a_trace_can_begin_in_the_middle_of_a_row(start_s: float, rows: tuple[Row, ...]) -> None:
    trace = Trace((Row(0.0, 8.0), Row(2.0, 4.0, event="hold:1"), Row(5.0, 2.0, event="reset")))
    assert trace.since(start_s).rows == rows
    with pytest.raises(UsageError, match="lasts 8 s: it cannot begin at 8 s"):
        trace.since(8.0)


@pytest.mark.parametrize(("text", "event"), [
    ("12:blackhole:3", Event(12.0, EventKind.BLACKHOLE, 3.0)),
    ("1.5:hold:0.4:up", Event(1.5, EventKind.HOLD, 0.4, (Direction.UP,))),
    ("0:blackhole:1:both", Event(0.0, EventKind.BLACKHOLE, 1.0)), ("2:reset", Event(2.0, EventKind.RESET)),
    ("3:refuse:2", Event(3.0, EventKind.REFUSE, 2.0)), ("4:change:5g", Event(4.0, EventKind.CHANGE, profile="5g")),
    ("4:change:5g:2", Event(4.0, EventKind.CHANGE, 2.0, profile="5g")),
])  # fmt: skip
def test_forms(text: str, event: Event) -> None:
    assert parse_timed_event(text) == event


@pytest.mark.parametrize(("text", "message"), [
    ("12", "names no event"), ("x:reset", "'x' is not a number of seconds"),
    ("1:earthquake", "'earthquake' is not an event"),
    ("1:blackhole", "not of the form blackhole:SECONDS:DIRECTION"),
    ("1:blackhole:2:sideways", "'sideways' is not a direction"), ("1:reset:2", "not of the form reset"),
    ("1:change", "incomplete"),
])  # fmt: skip
def test_malformed_events_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_timed_event(text)
    assert message in caught.value.message
    assert caught.value.hint
