"""Links between client and server: netsim's stream proxy as a child process, or none."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import ConfigError

from moa_bench.child import running


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between client and server.

    Args:
        name: for tables.
        profile: one of netsim's, or empty.
        rtt_ms: mean round trip; where there is no profile it is fixed, and 0 means no link at all, loopback.
    """

    name: str
    profile: str = ""
    rtt_ms: float = 0.0


# The links of the aim: none, the paper's 5G and 4G (delays read as one-way, the harder reading), two long ones.
LINKS = (
    Link("RTT 0"),
    Link("5G", "5g", rtt_ms=25.8),  # twice the mean of 10 +- 10 ms without its negative part
    Link("4G", "4g", rtt_ms=51.5),  # twice that of 21 +- 19 ms
    Link("RTT 150 ms", rtt_ms=150.0),
    Link("RTT 300 ms", rtt_ms=300.0),
)


def find_links(names: tuple[str, ...]) -> tuple[Link, ...]:
    """The links of these names, or all.

    Raises:
        ConfigError: an unknown name.
    """
    known = {link.name.lower(): link for link in LINKS}
    for name in names:
        if name.lower() not in known:
            raise ConfigError(
                f"There is no link {name!r}.", hint=f"There are {', '.join(link.name for link in LINKS)}."
            )
    return tuple(known[name.lower()] for name in names) or LINKS


@dataclass(frozen=True, slots=True)
class RunningLink:
    """A link in use: connect to `address`.

    Args:
        control: netsim's control socket; None: loopback, which cannot be cut.
    """

    address: str
    control: Path | None

    def cut(self, seconds: float) -> None:
        """Lose everything that is sent for a time.

        Raises:
            ConfigError: there is no emulated link.
        """
        self._send({"do": "cut", "direction": "both", "seconds": seconds})

    def reset(self) -> None:
        """End every connection with a reset."""
        self._send({"do": "reset"})

    def _send(self, request: dict[str, object]) -> None:
        from netsim import control

        if self.control is None:
            raise ConfigError("A loopback connection cannot be cut.", hint="Choose an emulated link.")
        control.send(self.control, request)


@contextmanager
def linked(link: Link, upstream: str, *, seed: int = 0, cores: set[int] | None = None) -> Iterator[RunningLink]:
    """Put a link before a server.

    Args:
        upstream: "host:port" of the server.
        seed: of delays and losses.
    """
    if not link.profile and not link.rtt_ms:
        yield RunningLink(upstream, None)
        return
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        control = Path(folder) / "control"
        profile = link.profile or str(_write_profile(link, Path(folder)))
        arguments = [
            "proxy", "--profile", profile, "--seed", str(seed), "--listen", "127.0.0.1:0", "--upstream", upstream,
            "--control", str(control),
        ]  # fmt: skip
        with running("netsim.cli", arguments, cores=cores) as proxy:
            yield RunningLink(proxy.address, control)


def _write_profile(link: Link, folder: Path) -> Path:
    """A profile of nothing but delay; YAML reads JSON."""
    path = folder / "link.yaml"
    document = {
        "version": 1,
        "name": f"rtt-{link.rtt_ms:.0f}",
        "description": "A fixed delay and nothing else.",
        "basis": "rtt",
        "delay": {"mean_ms": link.rtt_ms},
    }
    path.write_text(json.dumps(document), "utf-8")
    return path
