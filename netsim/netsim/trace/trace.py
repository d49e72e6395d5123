"""A trace in memory: rows of time, rates, round trip, loss and event; what a row leaves out, the profile says."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from netsim.core.conditions import Bernoulli, Conditions, DelaySpec
from netsim.core.link import Direction
from netsim.core.timeline import Event, parse_event
from netsim.errors import TraceError


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
    """Rows in order of time, at least one; the first is at 0. The last row lasts as long as the one before it.

    Args:
        remarks: what was corrected while it was read, for people.
    """

    rows: tuple[Row, ...]
    remarks: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        """Length of the trace, the last row's share included."""
        last = self.rows[-1].t_s
        return last + (last - self.rows[-2].t_s if len(self.rows) > 1 else 1.0)

    @property
    def events(self) -> tuple[Event, ...]:
        """Events that rows carry."""
        return tuple(parse_event(row.t_s, row.event) for row in self.rows if row.event)

    def since(self, start_s: float) -> Trace:
        """What is left from a time on; events before it do not happen.

        Raises:
            TraceError: the trace has ended by then.
        """
        if start_s >= self.duration_s:
            raise TraceError(f"The trace lasts {self.duration_s:g} s: it cannot begin at {start_s:g} s.")
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


def from_zero(rows: Sequence[Row], remarks: Sequence[str] = ()) -> Trace:
    """A trace whose first row is moved to time 0 (recordings begin at any time)."""
    start = rows[0].t_s
    return Trace(tuple(replace(row, t_s=round(row.t_s - start, 6)) for row in rows), tuple(remarks))
