"""JSON of the Rust crate netem-trace: bandwidth patterns, plain (`{"gbps": 0, "bps": 12000000}`) or human (`"12Mbps"`).

Read: StaticBwConfig, TraceBwConfig, RepeatedBwPatternConfig (once round: the caller repeats). Written: a pattern of
StaticBwConfig.
"""

from __future__ import annotations

import json
import re
from typing import Any

from netsim.errors import TraceError
from netsim.trace.trace import Row, Trace

_BANDS = {"bps": 1e-6, "kbps": 1e-3, "mbps": 1.0, "gbps": 1e3}
_SPANS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_HINT = "The models read are StaticBwConfig, TraceBwConfig and RepeatedBwPatternConfig of netem-trace."


def parse_netem_trace(text: str, source: str) -> Trace:
    """The trace in a document; raises TraceError, with line and column if the JSON itself is wrong."""
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{source}, line {error.lineno}, column {error.colno}: {error.msg}.") from error
    rows: list[Row] = []
    t = 0.0
    for mbps, seconds in _walk(document, source, "$"):
        rows.append(Row(round(t, 9), down_mbps=mbps))
        t += seconds
    if not rows:
        raise TraceError(f"{source} has no rows.", hint=_HINT)
    if seconds != (rows[-1].t_s - rows[-2].t_s if len(rows) > 1 else 1.0):
        rows.append(Row(round(t, 9), down_mbps=mbps))  # says how long the last one lasts
    return Trace(tuple(rows))


def format_netem_trace(trace: Trace, column: str) -> str:
    """Writes the rate in `column` as a pattern; raises TraceError where it is blank."""
    pattern = []
    ends = [*(row.t_s for row in trace.rows[1:]), trace.duration_s]
    for row, end in zip(trace.rows, ends, strict=True):
        mbps: float | None = getattr(row, column)
        if mbps is None:
            raise TraceError(
                f"The trace has no {column} at {row.t_s:g} s.", hint="A netem trace needs a rate everywhere."
            )
        gbps, bps = divmod(round(mbps * 1e6), 10**9)
        seconds, nanos = divmod(round((end - row.t_s) * 1e9), 10**9)
        static = {"bw": {"gbps": gbps, "bps": bps}, "duration": {"secs": seconds, "nanos": nanos}}
        pattern.append({"StaticBwConfig": static})
    return json.dumps({"RepeatedBwPatternConfig": {"pattern": pattern, "count": 1}}) + "\n"


def _walk(node: Any, source: str, path: str) -> list[tuple[float, float]]:
    """(Mbit/s, seconds) of one model, in order."""
    if not isinstance(node, dict) or len(node) != 1:
        raise TraceError(f"{source}, at {path}: one model belongs here.", hint=_HINT)
    (kind, body), *_ = node.items()
    here = f"{path}.{kind}"
    try:
        if kind == "StaticBwConfig":
            return [(_mbps(body["bw"]), _seconds(body["duration"]))]
        if kind == "TraceBwConfig":
            return [(_mbps(bw), _seconds(span)) for span, rates in body["pattern"] for bw in rates]
        if kind == "RepeatedBwPatternConfig":
            once = [
                step for i, each in enumerate(body["pattern"]) for step in _walk(each, source, f"{here}.pattern[{i}]")
            ]
            return once * max(1, int(body.get("count", 1)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceError(f"{source}, at {here}: {error!s} is missing or has the wrong form.", hint=_HINT) from error
    raise TraceError(f"{source}, at {path}: {kind} cannot be read.", hint=_HINT)


def _mbps(value: Any) -> float:
    if isinstance(value, dict):
        return float(value.get("gbps", 0)) * 1e3 + float(value.get("bps", 0)) / 1e6
    return _measure(value, _BANDS)


def _seconds(value: Any) -> float:
    if isinstance(value, dict):
        return float(value.get("secs", 0)) + float(value.get("nanos", 0)) / 1e9
    return _measure(value, _SPANS)


def _measure(value: Any, units: dict[str, float]) -> float:
    """Sum of parts such as `1s 500ms`; raises ValueError."""
    parts = re.findall(r"([\d.]+)\s*([a-zA-Z]+)", str(value))
    if not parts or re.sub(r"[\d.]+\s*[a-zA-Z]+|\s", "", str(value)):
        raise ValueError(repr(value))
    try:
        return sum(float(count) * units[unit.lower()] for count, unit in parts)
    except KeyError as error:
        raise ValueError(repr(value)) from error
