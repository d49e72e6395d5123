"""Links whose rate was recorded, and the times in which nothing came over them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

from moa_shared.errors import ConfigError
from netsim.traces import Row, Trace

from moa_bench.harness.links import LINKS, EmulatedLink

SHORTEST_S = 0.5
BEFORE_S = 2.0  # of the recording that is replayed before an outage: a connection is opened in it


def recorded_link(given: str) -> EmulatedLink:
    """A link whose delay is a known link's, and whose rate is recorded.

    Args:
        given: as `--trace` names it, LINK=FILE.
    """
    name, equals, file = given.partition("=")
    if not (equals and file):
        raise ConfigError(f"--trace {given} is not LINK=FILE.", hint="Write, for example, --trace 4G=drive.csv.")
    delayed = {link.name.lower(): link for link in LINKS if link.delay_ms}
    if name.lower() not in delayed:
        known = ", ".join(link.name for link in delayed.values())
        raise ConfigError(f"There is no link {name!r} to take the delay from.", hint=f"There are {known}.")
    base, path = delayed[name.lower()], Path(file)
    link = replace(base, name=f"{base.name}, {path.stem}", rate_mbps=None, recording=path)
    recording_of(link)
    return link


def recording_of(link: EmulatedLink) -> Trace:
    """The recording of a link that has one."""
    from netsim.traces import read_trace

    if link.recording is None:
        raise ValueError(f"{link.name} is not recorded")
    return read_trace(link.recording)


def served_from(trace: Trace, share: float) -> float:
    """The first time after a share of a recording at which something comes, in seconds; who asks has a link."""
    start_s = share * trace.duration_s
    served = (max(start_s, row.t_s) for row, end_s in _rows(trace) if row.down_mbps != 0 and end_s > start_s)
    return round(next(served, start_s), 3)


@dataclass(frozen=True, slots=True)
class Outage:
    """A stretch of a recording without any rate downwards, in seconds from its begin."""

    at_s: float
    seconds: float


def outages(trace: Trace) -> list[Outage]:
    """Those of at least SHORTEST_S that do not begin in the first BEFORE_S."""
    runs = groupby(_rows(trace), key=lambda pair: pair[0].down_mbps == 0)
    found = [_outage(list(run)) for is_out, run in runs if is_out]
    return [each for each in found if each.seconds >= SHORTEST_S and each.at_s >= BEFORE_S]


def _rows(trace: Trace) -> list[tuple[Row, float]]:
    """Rows, and when they end."""
    ends_s = [after.t_s for _, after in pairwise(trace.rows)] + [trace.duration_s]
    return list(zip(trace.rows, ends_s, strict=True))


def _outage(run: Sequence[tuple[Row, float]]) -> Outage:
    (first, _), (_, end_s) = run[0], run[-1]
    return Outage(first.t_s, round(end_s - first.t_s, 3))
