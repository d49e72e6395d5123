"""Mahimahi traces: a line for each chance to send one packet of 1,504 bytes, its time in ms; the list repeats.

They carry the rate of one direction and nothing else.
"""

from __future__ import annotations

from collections import Counter

from netsim.errors import TraceError
from netsim.trace.csv_format import number
from netsim.trace.trace import Row, Trace

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
