"""Trace formats: there and back, told apart, and the place of what is malformed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from netsim.core.timeline import EventKind
from netsim.errors import TraceError
from netsim.trace.formats import (
    TraceFormat,
    detect,
    format_csv,
    format_mahimahi,
    format_trace,
    parse_csv,
    parse_mahimahi,
    parse_pensieve,
    read_trace,
)
from netsim.trace.trace import Row, Trace

from tests.support.messages import raises

cells = st.none() | st.floats(0.0, 999.0).map(lambda value: float(f"{value:.6g}"))
rows = st.builds(
    Row,
    st.just(0.0),
    cells,
    cells,
    cells,
    st.none() | st.sampled_from([0.0, 0.01, 1.0]),
    st.sampled_from(["", "reset"]),
)


@given(st.lists(rows, min_size=1, max_size=20))
def test_csv_there_and_back(made: list[Row]) -> None:
    from dataclasses import replace

    trace = Trace(tuple(replace(row, t_s=i / 8) for i, row in enumerate(made)))
    assert parse_csv(format_csv(trace), "t") == trace


def test_blanks_inherit_and_columns_may_be_left_out() -> None:
    trace = parse_csv("t_s, up_mbps,event\n5,1,\n6,,hold:0.5\n", "t")
    assert trace.rows == (Row(0.0, up_mbps=1.0), Row(1.0, event="hold:0.5"))
    assert trace.duration_s == 2.0
    [event] = trace.events
    assert (event.kind, event.at_s) == (EventKind.HOLD, 1.0)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a,b\n1,2\n", "line 1: the header has no column t_s"),
        ("t_s,speed\n0,1\n", "line 1, column 2: there is no column 'speed'"),
        ("t_s,loss,loss\n0,1,1\n", "line 1, column 3: 'loss' appears twice"),
        ("t_s,loss\n", "has no rows"),
        ("t_s,loss\n0,0.1\n1,x\n", "line 3, column 2: 'x' is not a number"),
        ("t_s,loss\n0,2\n", "line 2, column 2: 2 is not between 0 and 1"),
        ("t_s,down_mbps\n0,-1\n", "line 2, column 2: -1 is not of at least 0"),
        ("t_s,down_mbps\n0,nan\n", "line 2, column 2"),
        ("t_s,down_mbps\n1,1\n0,1\n", "line 3, column 1: time 0 does not come after 1"),
        ("t_s,event\n0,reset\n0,fin\n", "line 3, column 1: time 0 does not come after 0"),
        ("t_s,down_mbps\n,1\n", "line 2, column 1: t_s is blank"),
        ("t_s,down_mbps\n0\n", "line 2, column 2: 1 cells where the header has 2"),
        ("t_s,event\n0,quake\n", "line 2, column 2: 'quake' is not an event"),
    ],
)
def test_malformed_csv_names_its_place(text: str, place: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_csv(text, "my.csv")
    assert caught.value.message.startswith("my.csv")
    assert place in caught.value.message


def test_rows_of_one_time_are_merged_with_a_remark() -> None:
    trace = parse_csv("t_s,down_mbps,up_mbps,event\n0,1,5,reset\n0,2,,\n1,3,,\n", "t.csv")
    assert trace.rows == (Row(0.0, 2.0, 5.0, event="reset"), Row(1.0, 3.0))
    assert trace.remarks == ("t.csv, line 3: a second row for 0 s; its values replace those before.",)
    assert parse_pensieve("0 1\n1 2\n1 4\n", "t").rows == (Row(0.0, 1.0), Row(1.0, 4.0))


def test_a_recorded_walk_with_a_second_that_is_there_twice(shared_dir: Path) -> None:
    trace = read_trace(shared_dir / "traces" / "4g-walking-50007.txt")
    [remark] = trace.remarks
    assert "a second row for" in remark
    assert all(before.t_s < row.t_s for before, row in pairwise(trace.rows))


def test_ignored_columns_are_passed_over() -> None:
    assert parse_csv("t_s,network\n0,lte\n", "t", ("network",)).rows == (Row(0.0),)


def test_mahimahi_counts_packets() -> None:
    # A packet of 1,504 bytes each ms is 12.032 Mbit/s.
    trace = parse_mahimahi("\n".join(map(str, range(1, 201))), "t")
    assert trace.rows == (Row(0.0, down_mbps=12.032), Row(0.1, down_mbps=12.032))
    assert format_mahimahi(trace, "down_mbps").split() == [str(ms) for ms in range(1, 201)]


@given(st.lists(st.floats(0.1, 200.0), min_size=1, max_size=10))
def test_mahimahi_keeps_the_bits(rates: list[float]) -> None:
    trace = Trace(tuple(Row(float(i), down_mbps=rate) for i, rate in enumerate(rates)))
    packets = len(format_mahimahi(trace, "down_mbps").split())
    assert abs(packets * 1504 * 8 - sum(rates) * 1e6) <= 1504 * 8 + 1


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("1\nx\n", "line 2, column 1: 'x' is not a number"),
        ("5\n3\n", "line 2, column 1: time 3 goes back"),
        ("1.5\n", "line 1"),
        ("0\n", "no time above 0"),
    ],
)
def test_malformed_mahimahi(text: str, place: str) -> None:
    with pytest.raises(TraceError) as caught:
        parse_mahimahi(text, "m")
    assert place in caught.value.message


def test_pensieve() -> None:
    trace = parse_pensieve("1.0 155\n2.0\t0\n", "t")
    assert trace.rows == (Row(0.0, down_mbps=155.0), Row(1.0, down_mbps=0.0))
    assert format_trace(trace, TraceFormat.PENSIEVE) == "0 155\n1 0\n"
    with raises(TraceError, snapshot("t, line 2, column 2: 1 cells, expected two.")):
        parse_pensieve("0 1\n7\n", "t")


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("t_s,loss\n0,1", TraceFormat.CSV),
        ("1\n2\n", TraceFormat.MAHIMAHI),
        ("\n0 39.0\n", TraceFormat.PENSIEVE),
    ],
)
def test_formats_are_told_apart(text: str, form: TraceFormat) -> None:
    assert detect(text) is form


def test_unreadable_files(tmp_path: Path) -> None:
    with raises(TraceError, snapshot("Trace TMP/none.csv cannot be read: No such file or directory.")):
        read_trace(tmp_path / "none.csv")
    (tmp_path / "empty").write_text("\n")
    with raises(TraceError, snapshot("TMP/empty is empty.")):
        read_trace(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with raises(TraceError, snapshot("Trace TMP/binary cannot be read: it is not text.")):
        read_trace(tmp_path / "binary")
    (tmp_path / "json").write_text('{"StaticBwConfig": {}}')
    with raises(TraceError, snapshot("TMP/json is JSON: version 0.2.0 was the last that read traces of netem-trace.")):
        read_trace(tmp_path / "json")


@pytest.mark.parametrize("form", [TraceFormat.MAHIMAHI, TraceFormat.PENSIEVE])
def test_a_missing_rate_cannot_be_written(form: TraceFormat) -> None:
    with raises(TraceError, snapshot("The trace has no up_mbps at 0 s.")):
        format_trace(Trace((Row(0.0, down_mbps=1.0),)), form, "up_mbps")


def test_recorded_traces_are_read(shared_dir: Path) -> None:
    folder = shared_dir / "traces"
    handover = read_trace(folder / "handover-lte-5g.csv", ignored=("network",))
    assert handover.duration_s == pytest.approx(614, abs=2)
    driving = read_trace(folder / "4g-driving-50096.txt")
    assert sum(row.down_mbps or 0.0 for row in driving.rows) / len(driving.rows) == pytest.approx(15, abs=1)
    assert read_trace(folder / "5g-driving-23.txt").rows[0] == Row(0.0, down_mbps=155.0)
