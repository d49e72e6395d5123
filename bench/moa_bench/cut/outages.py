"""Times of a recorded link in which nothing came. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from netsim.trace.trace import Row, Trace

SHORTEST_S = 0.5
BEFORE_S = 2.0  # of the recording that is replayed before an outage: a connection is opened in it


@dataclass(frozen=True, slots=True)
class Outage:
    """A stretch of a recording without any rate downwards, in seconds from its begin."""

    at_s: float
    seconds: float


def outages(trace: Trace) -> list[Outage]:
    """Those of at least SHORTEST_S that do not begin in the first BEFORE_S."""
    ends = [after.t_s for _, after in pairwise(trace.rows)] + [trace.duration_s]
    runs = groupby(zip(trace.rows, ends, strict=True), key=lambda pair: pair[0].down_mbps == 0)
    found = [_outage(list(run)) for is_out, run in runs if is_out]
    return [each for each in found if each.seconds >= SHORTEST_S and each.at_s >= BEFORE_S]


def _outage(run: Sequence[tuple[Row, float]]) -> Outage:
    (first, _), (_, end_s) = run[0], run[-1]
    return Outage(first.t_s, round(end_s - first.t_s, 3))
