"""Links between client and server: netsim's stream proxy as a child process, or none."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from moa_shared.errors import ConfigError

from moa_bench.harness.child import running


@dataclass(frozen=True, slots=True)
class EmulatedLink:
    name: str  # for tables
    delay_ms: float = 0.0  # of each direction; 0 means no link at all, loopback
    deviation_ms: float = 0.0  # of the delay, normal and kept above zero, correlated in time as netsim has it
    rate_mbps: float | None = None  # of each direction; None: no limit

    @property
    def document(self) -> str:
        document = {
            "version": 1,
            "name": self.name.lower().replace(" ", "-"),
            "description": "A link of moa-bench: delay and rate, no loss.",
            "basis": "one_way",
            "delay": {"mean_ms": self.delay_ms, "deviation_ms": self.deviation_ms},
        }
        return json.dumps(document | ({"rate_mbps": self.rate_mbps} if self.rate_mbps else {}))


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
            hint = f"There are {', '.join(link.name for link in LINKS)}."
            raise ConfigError(f"There is no link {name!r}.", hint=hint)
    return tuple(known[name.lower()] for name in names)


@dataclass(frozen=True, slots=True)
class RunningLink:
    address: str
    control: Path | None  # netsim's control socket; None: loopback, which cannot be cut

    def cut(self, seconds: float) -> None:
        self._send({"do": "cut", "direction": "both", "seconds": seconds})

    def reset(self) -> None:
        self._send({"do": "reset"})

    def _send(self, request: dict[str, object]) -> None:
        from netsim.run import control

        if self.control is None:
            raise ConfigError("A loopback connection cannot be cut.", hint="Choose an emulated link.")
        control.send(self.control, request)


@contextmanager
def linked(link: EmulatedLink, upstream: str, *, seed: int = 0, cores: set[int] | None = None) -> Iterator[RunningLink]:
    """Put a link before a server at "host:port"."""
    if not link.delay_ms:
        yield RunningLink(upstream, None)
        return
    with tempfile.TemporaryDirectory(prefix="moa-bench-") as folder:
        control = Path(folder) / "control"
        profile = Path(folder) / "link.yaml"
        profile.write_text(link.document, "utf-8")  # YAML reads JSON
        options = ["--profile", str(profile), "--seed", str(seed), "--upstream", upstream, "--control", str(control)]
        with running("netsim.cli", ["proxy", "--listen", "127.0.0.1:0", *options], cores=cores) as proxy:
            yield RunningLink(proxy.address, control)
