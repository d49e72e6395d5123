"""Reads and writes trace files in any of the three formats; the format is detected from the content unless given."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from netsim.errors import TraceError
from netsim.trace.csv_format import format_csv, parse_csv
from netsim.trace.mahimahi import format_mahimahi, parse_mahimahi
from netsim.trace.pensieve import format_pensieve, parse_pensieve
from netsim.trace.trace import Trace


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
