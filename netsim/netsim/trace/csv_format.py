"""Our trace format: CSV with a header, `t_s` first, then any of down_mbps, up_mbps, rtt_ms, loss, event; blanks
inherit.

Columns of other names are refused, so that a misspelt one is not ignored. Errors name line and column, both from 1.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

from netsim.core.timeline import parse_event
from netsim.errors import EventError, TraceError
from netsim.trace.trace import Row, Trace, from_zero

COLUMNS = ("t_s", "down_mbps", "up_mbps", "rtt_ms", "loss", "event")
_RANGES: dict[str, tuple[float, float]] = {"loss": (0.0, 1.0)}


def parse_csv(text: str, source: str, ignored: tuple[str, ...] = ()) -> Trace:
    """Reads our CSV; raises TraceError. Skips the columns named in `ignored`."""
    lines = list(csv.reader(io.StringIO(text)))
    if not lines or "t_s" not in (header := [name.strip() for name in lines[0]]):
        raise TraceError(
            f"{source}, line 1: the header has no column t_s.",
            hint=f"The columns are {','.join(COLUMNS)}; t_s is required.",
        )
    for column, name in enumerate(header, 1):
        if name not in COLUMNS and name not in ignored:
            raise TraceError(
                f"{source}, line 1, column {column}: there is no column {name!r}.",
                hint=f"The columns are {', '.join(COLUMNS)}; `netsim convert --ignore {name}` drops it.",
            )
        if header.index(name) != column - 1:
            raise TraceError(f"{source}, line 1, column {column}: {name!r} appears twice.")
    rows = [_row(cells, header, source, number) for number, cells in enumerate(lines[1:], 2) if any(cells)]
    return build(rows, source)


def build(rows: list[tuple[int, Row]], source: str) -> Trace:
    """A trace of (line number, row). Of rows of one time the later one counts, as far as it says anything.

    Raises:
        TraceError: it is empty, time goes back, or two events have the same time.
    """
    if not rows:
        raise TraceError(f"{source} has no rows.")
    kept: list[Row] = []
    remarks: list[str] = []
    for line, row in rows:
        if not kept or row.t_s > kept[-1].t_s:
            kept.append(row)
            continue
        before = kept[-1]
        if row.t_s < before.t_s or (row.event and before.event):
            raise TraceError(
                f"{source}, line {line}, column 1: time {row.t_s:g} does not come after {before.t_s:g}.",
                hint="Rows must be in order of time, and a time has one event at most.",
            )
        kept[-1] = _merged(before, row)
        remarks.append(f"{source}, line {line}: a second row for {row.t_s:g} s; its values replace those before.")
    return from_zero(kept, remarks)


def _merged(before: Row, row: Row) -> Row:
    said = {name: value for name in COLUMNS[1:] if (value := getattr(row, name)) not in (None, "")}
    return replace(before, **said)


def number(text: str, source: str, line: int, column: int, high: float = math.inf, low: float = 0.0) -> float:
    """A finite number within the limits; raises TraceError with its place."""
    try:
        value = float(text)
    except ValueError:
        raise TraceError(f"{source}, line {line}, column {column}: {text!r} is not a number.") from None
    if not low <= value <= high or not math.isfinite(value):
        limits = f"between {low:g} and {high:g}" if math.isfinite(high) else f"of at least {low:g}"
        raise TraceError(f"{source}, line {line}, column {column}: {text} is not {limits}.")
    return value


def _row(cells: list[str], header: list[str], source: str, line: int) -> tuple[int, Row]:
    if len(cells) != len(header):
        raise TraceError(
            f"{source}, line {line}, column {min(len(cells), len(header)) + 1}: "
            f"{len(cells)} cells where the header has {len(header)}."
        )
    values: dict[str, float] = {}
    event = ""
    for column, (name, cell) in enumerate(zip(header, (cell.strip() for cell in cells), strict=True), 1):
        if name == "event" and cell:
            event = cell
            try:
                parse_event(0.0, cell)
            except EventError as error:
                raise TraceError(f"{source}, line {line}, column {column}: {error.message}", hint=error.hint) from error
        elif name in COLUMNS and cell:
            values[name] = number(cell, source, line, column, *_RANGES.get(name, (0.0, math.inf))[::-1])
        elif name == "t_s":
            raise TraceError(f"{source}, line {line}, column {column}: t_s is blank.")
    return line, Row(event=event, **values)


def format_csv(trace: Trace) -> str:
    """Writes our CSV, only the columns that the trace uses."""
    used = [
        name for name in COLUMNS if name == "t_s" or any(getattr(row, name) not in (None, "") for row in trace.rows)
    ]
    # Ten digits of time: a day in microseconds.
    rows = (",".join([f"{row.t_s:.10g}", *(_cell(getattr(row, name)) for name in used[1:])]) for row in trace.rows)
    return "\n".join([",".join(used), *rows]) + "\n"


def _cell(value: float | str | None) -> str:
    return f"{value:.6g}" if isinstance(value, float) else value or ""
