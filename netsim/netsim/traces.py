"""What happens to a link at given times: events, and traces, which say second by second what a link did.

`parse_event` reads the short form that the command line and traces use: KIND[:SECONDS][:DIRECTION],
`change:PROFILE[:RAMP_SECONDS]`. Files of traces are CSV with a header, or two columns of seconds and Mbit/s down, as
Pensieve's recordings are; the content says which. What a row leaves out, the profile says.
"""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from netsim.core.conditions import Bernoulli, Conditions, DelaySpec
from netsim.core.link import Direction
from netsim.errors import UsageError


class EventKind(StrEnum):
    """`blackhole` loses packets, `hold` keeps them; `reset`, `fin` and `refuse` act on connections."""

    BLACKHOLE = "blackhole"
    HOLD = "hold"
    RESET = "reset"
    FIN = "fin"
    REFUSE = "refuse"
    CHANGE = "change"


LASTING = frozenset({EventKind.BLACKHOLE, EventKind.HOLD, EventKind.REFUSE})
DIRECTED = frozenset({EventKind.BLACKHOLE, EventKind.HOLD})
BOTH = (Direction.UP, Direction.DOWN)


@dataclass(frozen=True, slots=True)
class Event:
    """One event at `at_s` of the run. An infinite `duration_s` lasts until the link is healed."""

    at_s: float
    kind: EventKind
    duration_s: float = 0.0  # of a lasting event; for a change, its ramp
    directions: tuple[Direction, ...] = BOTH
    profile: str | None = None

    @property
    def end_s(self) -> float:
        """When a lasting event is over."""
        return self.at_s + self.duration_s


def parse_directions(text: str) -> tuple[Direction, ...]:
    """`up`, `down` or `both`; raises UsageError."""
    if text == "both":
        return BOTH
    try:
        return (Direction(text),)
    except ValueError:
        raise UsageError(f"{text!r} is not a direction.", hint="Directions are up, down and both.") from None


def parse_event(at_s: float, text: str) -> Event:
    """Reads the short form of an event; raises UsageError."""
    name, *rest = (part.strip() for part in text.strip().split(":"))
    try:
        kind = EventKind(name)
    except ValueError:
        known = ", ".join(EventKind)
        raise UsageError(
            f"{name!r} is not an event.", hint=f"Events are {known}; for example blackhole:2.5:up."
        ) from None
    if kind is EventKind.CHANGE:
        if not rest or len(rest) > 2:
            raise UsageError(f"{text!r} is incomplete.", hint="Write change:PROFILE or change:PROFILE:RAMP_SECONDS.")
        return Event(at_s, kind, _seconds(rest[1]) if len(rest) == 2 else 0.0, profile=rest[0])
    allowed = (kind in LASTING) + (kind in DIRECTED)
    if len(rest) > allowed or (kind in LASTING and not rest):
        form = f"{kind}:SECONDS" + (":DIRECTION" if kind in DIRECTED else "") if kind in LASTING else str(kind)
        raise UsageError(
            f"{text!r} is not of the form {form}.", hint="DIRECTION is up, down or both, and may be left out."
        )
    duration = _seconds(rest[0]) if rest else 0.0
    return Event(at_s, kind, duration, parse_directions(rest[1]) if len(rest) == 2 else BOTH)


def parse_timed_event(text: str) -> Event:
    """Reads `SECONDS:EVENT`, the form of the command line."""
    at, _, event = text.partition(":")
    if not event:
        raise UsageError(f"{text!r} names no event.", hint="Write SECONDS:EVENT, for example 12:blackhole:3.")
    return parse_event(_seconds(at), event)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise UsageError(f"{text!r} is not a number of seconds.", hint="Give a number of at least 0.")
    return value


COLUMNS = ("t_s", "down_mbps", "up_mbps", "rtt_ms", "loss", "event")


@dataclass(frozen=True, slots=True)
class Row:
    """Conditions from `t_s` until the next row. None inherits from the profile."""

    t_s: float
    down_mbps: float | None = None
    up_mbps: float | None = None
    rtt_ms: float | None = None
    loss: float | None = None
    event: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Rows in order of time, at least one; the first is at 0. The last row lasts as long as the one before it."""

    rows: tuple[Row, ...]

    @property
    def duration_s(self) -> float:
        """Length of the trace, the last row's share included."""
        last = self.rows[-1].t_s
        return last + (last - self.rows[-2].t_s if len(self.rows) > 1 else 1.0)

    @property
    def events(self) -> tuple[Event, ...]:
        return tuple(parse_event(row.t_s, row.event) for row in self.rows if row.event)

    def since(self, start_s: float) -> Trace:
        """What is left from a time on, without the events before it; raises UsageError if it has ended by then."""
        if start_s >= self.duration_s:
            raise UsageError(f"The trace lasts {self.duration_s:g} s: it cannot begin at {start_s:g} s.")
        place = bisect_right(self.rows, start_s, key=lambda row: row.t_s) - 1
        row = self.rows[place]
        first = replace(row, t_s=0.0, event=row.event if row.t_s == start_s else "")
        later = (replace(row, t_s=round(row.t_s - start_s, 6)) for row in self.rows[place + 1 :])
        return replace(self, rows=(first, *later))

    def points(self, direction: Direction, base: Conditions) -> list[tuple[float, Conditions]]:
        """Break points of one direction's schedule, blanks filled from `base`."""
        return [(row.t_s, _conditions(row, direction, base)) for row in self.rows]


def _conditions(row: Row, direction: Direction, base: Conditions) -> Conditions:
    mbps = row.up_mbps if direction is Direction.UP else row.down_mbps
    if mbps is not None:
        base = replace(base, rate_bps=mbps * 1e6)
    if row.rtt_ms is not None:
        # A recorded round trip has its variation in its rows: half of it each way, and no draw on top.
        base = replace(base, delay=DelaySpec(mean_ms=row.rtt_ms, scale=0.5))
    if row.loss is not None:
        base = replace(base, loss=Bernoulli(row.loss))
    return base


def from_zero(rows: Sequence[Row]) -> Trace:
    """A trace whose first row is moved to time 0 (recordings begin at any time)."""
    start = rows[0].t_s
    return Trace(tuple(replace(row, t_s=round(row.t_s - start, 6)) for row in rows))


def read_trace(path: Path, ignored: Sequence[str] = ()) -> Trace:
    """The trace in a file, without the columns of a CSV named in `ignored`; raises UsageError with line and column."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"Trace {path} cannot be read: {reason}.") from error
    return parse_trace(text, str(path), ignored)


def parse_trace(text: str, source: str, ignored: Sequence[str] = ()) -> Trace:
    """As `read_trace`. Of rows of one time the later one counts, as far as it says anything."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    if not first:
        raise UsageError(f"{source} is empty.")
    is_csv = "," in first or any(character.isalpha() for character in first)
    gone = "JSON" if first.lstrip()[0] in "{[" else None if is_csv or len(first.split()) > 1 else "a list of times"
    if gone is not None:
        raise UsageError(
            f"{source} is {gone}: version 0.2.0 was the last that read traces of netem-trace and Mahimahi.",
            hint="Give rates as a CSV with the columns t_s and down_mbps.",
        )
    if is_csv:
        header, *lines = csv.reader(io.StringIO(text))
        header = _checked([name.strip() for name in header], source, ignored)
    else:
        header, lines = ["t_s", "down_mbps"], [line.split() for line in text.splitlines()]
    rows = [(n, _row(cells, header, source, n)) for n, cells in enumerate(lines, 1 + is_csv) if any(cells)]
    if not rows:
        raise UsageError(f"{source} has no rows.")
    kept: list[Row] = []
    for line, row in rows:
        if not kept or row.t_s > kept[-1].t_s:
            kept.append(row)
            continue
        before = kept[-1]
        if row.t_s < before.t_s or (row.event and before.event):
            raise UsageError(
                f"{source}, line {line}, column 1: time {row.t_s:g} does not come after {before.t_s:g}.",
                hint="Rows must be in order of time, and a time has one event at most.",
            )
        said = {name: value for name in COLUMNS[1:] if (value := getattr(row, name)) not in (None, "")}
        kept[-1] = replace(before, **said)
    return from_zero(kept)


def _checked(header: list[str], source: str, ignored: Sequence[str]) -> list[str]:
    if "t_s" not in header:
        raise UsageError(
            f"{source}, line 1: the header has no column t_s.",
            hint=f"The columns are {','.join(COLUMNS)}; t_s is required.",
        )
    for column, name in enumerate(header, 1):
        if name not in COLUMNS and name not in ignored:
            raise UsageError(
                f"{source}, line 1, column {column}: there is no column {name!r}.",
                hint=f"The columns are {', '.join(COLUMNS)}; `netsim replay --ignore {name}` passes over it.",
            )
        if header.index(name) != column - 1:
            raise UsageError(f"{source}, line 1, column {column}: {name!r} appears twice.")
    return header


def _row(cells: list[str], header: list[str], source: str, line: int) -> Row:
    if len(cells) != len(header):
        column = min(len(cells), len(header)) + 1
        raise UsageError(f"{source}, line {line}, column {column}: {len(cells)} cells, expected {len(header)}.")
    values: dict[str, float] = {}
    event = ""
    for column, (name, cell) in enumerate(zip(header, (cell.strip() for cell in cells), strict=True), 1):
        if name == "event" and cell:
            event = cell
            try:
                parse_event(0.0, cell)
            except UsageError as error:
                raise UsageError(f"{source}, line {line}, column {column}: {error.message}", hint=error.hint) from error
        elif name in COLUMNS and cell:
            values[name] = _number(cell, source, line, column, 1.0 if name == "loss" else math.inf)
        elif name == "t_s":
            raise UsageError(f"{source}, line {line}, column {column}: t_s is blank.")
    return Row(event=event, **values)


def _number(text: str, source: str, line: int, column: int, high: float = math.inf) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UsageError(f"{source}, line {line}, column {column}: {text!r} is not a number.") from None
    if not 0.0 <= value <= high or not math.isfinite(value):
        limits = f"between 0 and {high:g}" if math.isfinite(high) else "of at least 0"
        raise UsageError(f"{source}, line {line}, column {column}: {text} is not {limits}.")
    return value


def format_csv(trace: Trace) -> str:
    """Only the columns that the trace uses; ten digits of time: a day in microseconds."""
    digits = {"t_s": ".10g", "event": ""}
    used = [name for name in COLUMNS if any(getattr(row, name) not in (None, "") for row in trace.rows)]
    cells = [[(getattr(row, name), digits.get(name, ".6g")) for name in used] for row in trace.rows]
    rows = (",".join("" if value is None else format(value, form) for value, form in row) for row in cells)
    return "\n".join([",".join(used), *rows]) + "\n"
