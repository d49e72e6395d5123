"""Pensieve traces: two columns, seconds and Mbit/s (of the downlink), separated by blanks."""

from __future__ import annotations

from netsim.errors import TraceError
from netsim.trace.csv_format import build, number
from netsim.trace.trace import Row, Trace


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
