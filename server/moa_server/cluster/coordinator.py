"""What the replicas of a fleet know of each other: an actor of Ray whose state is rebuilt by their beats.

State: the newest report of each, and the book of quotas. Invariants: all serve the same; who has been silent for
SILENT_SECONDS is forgotten, and a replica that drains or hangs is not named. Nothing is lost with the actor but a few
seconds: replicas continue with what they were told last.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from moa_shared.errors import MismatchError

from moa_server.access.limits import KeyUsage
from moa_server.cluster.quotas import Consumption, Lease, Name, QuotaBook, RemoteUsage

SILENT_SECONDS = 5.0  # five beats


class State(StrEnum):
    SERVES = "serves"
    DRAINS = "drains"
    HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Serving:
    """What a replica serves, as far as a conversation must find the same elsewhere."""

    model: str
    fingerprint: str
    level: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica says of itself.

    Args:
        address: HOST:PORT at which clients reach it.
        load: 0 to 1, as clients are told; `kv_used`: share of the memory for keys and values.
        queue_seconds: how long some session has waited for its turn.
        sessions: held; `answering`: of these, with a running answer.
        process: its id; `node`: the address of its machine.
    """

    replica: str
    address: str
    serving: Serving
    state: State = State.SERVES
    load: float = 0.0
    kv_used: float = 0.0
    queue_seconds: float = 0.0
    sessions: int = 0
    answering: int = 0
    process: int = 0
    node: str = ""

    def facts(self) -> dict[str, Any]:
        fields = asdict(self)
        serving = fields.pop("serving")
        return {**fields, "state": str(self.state), "model": serving["model"], "execution": serving["level"]}


class Roster:
    def __init__(self) -> None:
        self._reports: dict[str, tuple[Report, float]] = {}

    def reports(self, now: float) -> list[Report]:
        self._forget(now)
        return sorted((report for report, _ in self._reports.values()), key=lambda report: report.address)

    def take(self, report: Report, now: float) -> None:
        """Takes a report in, the first of a replica too."""
        self._forget(now)
        for other, _ in self._reports.values():
            if other.replica != report.replica:
                check_same(other.serving, report.serving)
        for name in [name for name, (other, _) in self._reports.items() if other.address == report.address]:
            del self._reports[name]  # its successor has the port: it is gone
        self._reports[report.replica] = report, now

    def leave(self, replica: str) -> None:
        self._reports.pop(replica, None)

    def others(self, replica: str, now: float) -> list[str]:
        """Addresses of the other replicas that serve, those with least load first."""
        self._forget(now)
        found = [
            report for report, _ in self._reports.values() if report.replica != replica and report.state is State.SERVES
        ]
        return [report.address for report in sorted(found, key=lambda report: (report.load, report.address))]

    def _forget(self, now: float) -> None:
        self._reports = {
            name: (report, at) for name, (report, at) in self._reports.items() if now - at < SILENT_SECONDS
        }


def check_same(fleet: Serving, replica: Serving) -> None:
    """Raises MismatchError if a replica serves something else than the fleet that it joins."""
    hint = "Give it the fleet's, end the fleet first with moa-server cluster down, or use another --name."
    if fleet.fingerprint != replica.fingerprint:
        other = "other weights of it" if fleet.model == replica.model else fleet.model
        raise MismatchError(f"This replica serves {replica.model}, its fleet {other}.", hint=hint)
    if fleet.level != replica.level:
        raise MismatchError(f"This replica computes in {replica.level}, its fleet in {fleet.level}.", hint=hint)


@dataclass(frozen=True, slots=True)
class FleetView:
    others: tuple[str, ...]
    leases: Mapping[Name, Lease] = field(default_factory=dict)
    rests: Mapping[Name, RemoteUsage] = field(default_factory=dict)


class Coordinator:
    """The actor: one for each fleet."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roster = Roster()
        self._quotas = QuotaBook()

    def beat(self, report: Report, taken: Mapping[Name, Consumption], held: Mapping[Name, KeyUsage]) -> FleetView:
        """A replica is there, and its callers have taken and hold this."""
        now, replica = self._clock(), report.replica
        self._roster.take(report, now)
        return FleetView(
            tuple(self._roster.others(replica, now)),
            self._quotas.leases(replica, taken, now),
            self._quotas.rests(replica, held, now),
        )

    def leave(self, replica: str) -> None:
        self._roster.leave(replica)
        self._quotas.leave(replica)

    def reports(self) -> list[Report]:
        return self._roster.reports(self._clock())
