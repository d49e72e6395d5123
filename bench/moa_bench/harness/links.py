"""Links between client and server: netsim's stream proxy as a child process, or none; some with a recorded rate."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path

from moa_shared.errors import ConfigError
from netsim.core.conditions import Conditions
from netsim.traces import Row, Trace

from moa_bench.harness.child import running

SHORTEST_S = 0.5  # of an outage
BEFORE_S = 2.0  # of the recording that is replayed before an outage: a connection is opened in it


@dataclass(frozen=True, slots=True)
class EmulatedLink:
    """A link between client and server."""

    name: str  # for tables
    delay_ms: float = 0.0  # of each direction; 0 means no link at all, loopback
    deviation_ms: float = 0.0  # of the delay, normal and kept above zero, correlated in time as netsim has it
    rate_mbps: float | None = None  # of each direction; None: no limit
    recording: Path | None = None  # a trace that says what varies, above all the rate; None: nothing does
    start_s: float = 0.0  # where in the recording the link begins

    @property
    def document(self) -> str:
        """The link as a profile of netsim."""
        document = {
            "version": 1,
            "name": self.name.lower().replace(" ", "-"),
            "description": "A link of moa-bench: delay and rate, no loss.",
            "basis": "one_way",
            "delay": {"mean_ms": self.delay_ms, "deviation_ms": self.deviation_ms},
        }
        return json.dumps(document | ({"rate_mbps": self.rate_mbps} if self.rate_mbps else {}))

    @property
    def conditions(self) -> Conditions:
        """The conditions of each direction, for the simulation."""
        from netsim.core.link import Direction
        from netsim.profiles import parse

        return parse(self.document, self.name).conditions(Direction.UP)

    @property
    def rtt_ms(self) -> float:
        """Mean round trip: with a normal delay kept above zero it is more than twice the centre."""
        return 2 * self.conditions.delay.effective().mean_ms


# Delays are of each direction, the harder reading of the paper's figures of 5G and 4G. Without loss: one lost packet
# stalls a stream for a quarter of a second, and few answers would meet one.
LINKS = (
    EmulatedLink("RTT 0"),
    EmulatedLink("wired", 9.0, 0.0, 50.0),
    EmulatedLink("5G", 10.0, 10.0),
    EmulatedLink("4G", 21.0, 19.0, 20.0),
    EmulatedLink("RTT 50 ms", 25.0),
    EmulatedLink("RTT 100 ms", 50.0),
    EmulatedLink("RTT 150 ms", 75.0),
    EmulatedLink("RTT 300 ms", 150.0),
)


def find_links(names: Sequence[str]) -> tuple[EmulatedLink, ...]:
    known = {link.name.lower(): link for link in LINKS}
    for name in names:
        if name.lower() not in known:
            raise ConfigError(
                f"There is no link {name!r}.", hint=f"There are {', '.join(link.name for link in LINKS)}."
            )
    return tuple(known[name.lower()] for name in names)


@dataclass(frozen=True, slots=True)
class RunningLink:
    """A link in use: connect to `address`."""

    address: str
    control: Path | None  # netsim's control socket; None: loopback, which cannot be cut

    def cut(self, seconds: float) -> None:
        """Lose everything that is sent for a time."""
        self._send({"do": "cut", "direction": "both", "seconds": seconds})

    def reset(self) -> None:
        """End every connection with a reset."""
        self._send({"do": "reset"})

    def _send(self, request: dict[str, object]) -> None:
        from netsim.run import control

        if self.control is None:
            raise ConfigError("A loopback connection cannot be cut.", hint="Choose an emulated link.")
        control.send(self.control, request)


@contextmanager
def linked(link: EmulatedLink, upstream: str, *, seed: int = 0, cores: set[int] | None = None) -> Iterator[RunningLink]:
    """Put a link before a server.

    Args:
        upstream: "host:port" of the server.
        seed: of delays and losses.
    """
    if not link.delay_ms:
        yield RunningLink(upstream, None)
        return
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        control = Path(folder) / "control"
        profile = Path(folder) / "link.yaml"
        profile.write_text(link.document, "utf-8")  # YAML reads JSON
        command, last = ["proxy", "--listen", "127.0.0.1:0"], []
        if link.recording is not None:
            command, last = ["replay", "--backend", "proxy", "--from", str(link.start_s)], [str(link.recording)]
        options = ["--profile", str(profile), "--seed", str(seed), "--upstream", upstream, "--control", str(control)]
        with running("netsim.cli", command + options, cores=cores, last=last) as proxy:
            yield RunningLink(proxy.address, control)


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
    runs = [(is_out, list(run)) for is_out, run in groupby(_rows(trace), key=lambda pair: pair[0].down_mbps == 0)]
    found = [Outage(run[0][0].t_s, round(run[-1][1] - run[0][0].t_s, 3)) for is_out, run in runs if is_out]
    return [each for each in found if each.seconds >= SHORTEST_S and each.at_s >= BEFORE_S]


def _rows(trace: Trace) -> list[tuple[Row, float]]:
    """Rows, and when they end."""
    ends_s = [after.t_s for _, after in pairwise(trace.rows)] + [trace.duration_s]
    return list(zip(trace.rows, ends_s, strict=True))
