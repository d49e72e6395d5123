"""Trace files: our CSV, Mahimahi and two-column Pensieve; the format is detected from the content unless given."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from dataclasses import replace
from enum import StrEnum
from pathlib import Path

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


PACKET_BITS = 1504 * 8  # mahimahi's PACKET_SIZE: 1,500 and 4 of its TUN header
BIN_MS = 100  # short enough to keep a cell's scheduling, long enough to hold several packets


def parse_mahimahi(text: str, source: str) -> Trace:
    """Rates down in bins of 100 ms; raises TraceError."""
    times: list[int] = []
    for line, cell in enumerate(text.splitlines(), 1):
        if not cell.strip():
            continue
        value = number(cell.strip(), source, line, 1)
        if value != int(value):
            raise TraceError(f"{source}, line {line}, column 1: {cell.strip()} is not a whole number of ms.")
        if times and value < times[-1]:
            raise TraceError(f"{source}, line {line}, column 1: time {value:g} goes back.")
        times.append(int(value))
    if not times or times[-1] == 0:
        raise TraceError(f"{source} has no time above 0.", hint="A mahimahi trace lists times in ms, one a line.")
    length = times[-1]
    # The chance at the last ms belongs to the last bin: the list repeats with that period.
    chances = Counter(max(0, time - 1) // BIN_MS for time in times)
    rows = []
    for index in range((length + BIN_MS - 1) // BIN_MS):
        width_ms = min(BIN_MS, length - index * BIN_MS)
        rows.append(Row(index * BIN_MS / 1e3, down_mbps=chances[index] * PACKET_BITS / width_ms / 1e3))
    return Trace(tuple(rows))


def format_mahimahi(trace: Trace, column: str) -> str:
    """Chances to send for the rate in `column` (`down_mbps` or `up_mbps`); raises TraceError if that is blank."""
    credit, lines = 0.0, []
    ends = [*(row.t_s for row in trace.rows[1:]), trace.duration_s]
    now_ms = 0
    for row, end in zip(trace.rows, ends, strict=True):
        mbps: float | None = getattr(row, column)
        if mbps is None:
            raise TraceError(
                f"The trace has no {column} at {row.t_s:g} s.", hint="A mahimahi trace needs a rate everywhere."
            )
        while now_ms < round(end * 1e3):
            now_ms += 1
            credit += mbps * 1e3
            whole = int(credit // PACKET_BITS)
            credit -= whole * PACKET_BITS
            lines += [str(now_ms)] * whole
    if not lines:
        raise TraceError(
            "The trace's rate is zero throughout.", hint="A mahimahi trace needs at least one chance to send."
        )
    return "\n".join(lines) + "\n"


def parse_pensieve(text: str, source: str) -> Trace:
    """Rates down; raises TraceError."""
    rows: list[tuple[int, Row]] = []
    for line, content in enumerate(text.splitlines(), 1):
        cells = content.split()
        if not cells:
            continue
        if len(cells) != 2:
            raise TraceError(
                f"{source}, line {line}, column {min(len(cells), 2) + 1}: {len(cells)} cells, expected two.",
                hint="A Pensieve trace has seconds and Mbit/s in each line.",
            )
        rows.append((line, Row(number(cells[0], source, line, 1), down_mbps=number(cells[1], source, line, 2))))
    return build(rows, source)


def format_pensieve(trace: Trace, column: str) -> str:
    """Writes the rate in `column`; raises TraceError where it is blank."""
    lines = []
    for row in trace.rows:
        mbps: float | None = getattr(row, column)
        if mbps is None:
            raise TraceError(
                f"The trace has no {column} at {row.t_s:g} s.", hint="A Pensieve trace needs a rate everywhere."
            )
        lines.append(f"{row.t_s:.10g} {mbps:.6g}")
    return "\n".join(lines) + "\n"


class TraceFormat(StrEnum):
    """The formats of trace files."""

    CSV = "csv"
    MAHIMAHI = "mahimahi"
    PENSIEVE = "pensieve"


HINT = "Give rates as a CSV with the columns t_s and down_mbps."


def detect(text: str) -> TraceFormat:
    """Format by the first line: a header, two numbers or one."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    if "," in first or any(character.isalpha() for character in first):
        return TraceFormat.CSV
    return TraceFormat.PENSIEVE if len(first.split()) > 1 else TraceFormat.MAHIMAHI


def read_trace(path: Path, form: TraceFormat | None = None, ignored: tuple[str, ...] = ()) -> Trace:
    """The trace in a file; raises TraceError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise TraceError(f"Trace {path} cannot be read: {reason}.") from error
    if not text.strip():
        raise TraceError(f"{path} is empty.")
    if text.lstrip().startswith(("{", "[")):
        raise TraceError(f"{path} is JSON: version 0.2.0 was the last that read traces of netem-trace.", hint=HINT)
    match form or detect(text):
        case TraceFormat.CSV:
            return parse_csv(text, str(path), ignored)
        case TraceFormat.MAHIMAHI:
            return parse_mahimahi(text, str(path))
        case TraceFormat.PENSIEVE:
            return parse_pensieve(text, str(path))


def format_trace(trace: Trace, form: TraceFormat, column: str = "down_mbps") -> str:
    """The trace as text; formats other than our CSV carry only the rate in `column`. Raises TraceError."""
    match form:
        case TraceFormat.CSV:
            return format_csv(trace)
        case TraceFormat.MAHIMAHI:
            return format_mahimahi(trace, column)
        case TraceFormat.PENSIEVE:
            return format_pensieve(trace, column)
