"""Turns a measurement into a profile (one set of numbers) or a trace (second by second)."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean, pstdev
from typing import Any

from netsim.core.window import HEADER, MSS
from netsim.measure.near_end import Measurement
from netsim.trace.trace import Row, Trace, from_zero

WIRE_SHARE = (MSS + HEADER) / MSS  # a rate limit counts headers, what arrives is payload


def to_profile(seen: Measurement, name: str, server: str) -> dict[str, Any]:
    """A profile's document: mean and deviation of the round trip, the rates' means, loss from retransmissions."""
    values = [value for _, value in seen.round_trips_ms]
    document: dict[str, Any] = {
        "version": 1,
        "name": name,
        "description": f"Recorded to {server}: {len(values)} round trips"
        + (f", {len(seen.down_mbps)} s of load." if seen.down_mbps else ", no load."),
        "basis": "rtt",
        # Each direction gets half of a draw of its own, so the two add up to 1 / sqrt(2) of the deviation given here.
        "delay": {
            "mean_ms": round(fmean(values), 3),
            "deviation_ms": round(pstdev(values) * 2.0**0.5, 3),
            "truncation": "preserve_mean",
        },
    }
    for side, rates in (("down", seen.down_mbps), ("up", seen.up_mbps)):
        mean = fmean(value for _, value in rates) * WIRE_SHARE if rates else 0.0
        if mean > 0.0:
            document[side] = {"rate_mbps": round(mean, 3)}
    if seen.loss:
        document["loss"] = {"model": "bernoulli", "probability": round(seen.loss, 6)}
    return document


def to_trace(seen: Measurement) -> Trace:
    """Rows of a second; a round trip's cell is the mean of those that began in it."""
    cells: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for column, values, scale in (
        ("rtt_ms", seen.round_trips_ms, 1.0),
        ("down_mbps", seen.down_mbps, WIRE_SHARE),
        ("up_mbps", seen.up_mbps, WIRE_SHARE),
    ):
        for t, value in values:
            cells[int(t)][column].append(value * scale)
    rows = [
        Row(float(second), _mean(row["down_mbps"]), _mean(row["up_mbps"]), _mean(row["rtt_ms"]))
        for second, row in sorted(cells.items())
    ]
    return from_zero(rows)


def _mean(values: list[float]) -> float | None:
    return round(fmean(values), 3) if values else None
