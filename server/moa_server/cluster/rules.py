"""What holds for a fleet: who belongs to it, what callers may take in a minute, how many replicas a load wants. Pure.

Replicas tell once a second how they are, and what their callers have taken; only durations cross, no clock is compared
with another. What callers take comes from one bucket each; what is left is leased to those replicas at which the caller
has been. Invariants: all replicas serve the same; who has been silent for SILENT_SECONDS is forgotten, and a replica
that drains or hangs is not named. In the long run all replicas let through what one would; in one burst at most twice
that, since a replica that has not asked yet begins with an even share.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from moa_shared.errors import MismatchError

from moa_server.access.limits import Bucket, Buckets

NAMESPACE = "moa"  # of our actors
SILENT_SECONDS = 5.0  # five beats; a lease holds as long


class State(StrEnum):
    SERVES = "serves"
    DRAINS = "drains"
    HANGS = "hangs"


@dataclass(frozen=True, slots=True)
class Report:
    """What a replica says of itself. `fingerprint`: of what a conversation must find the same elsewhere."""

    replica: str
    address: str  # HOST:PORT at which clients reach it
    model: str
    fingerprint: str
    execution: str  # its level
    state: State = State.SERVES
    load: float = 0.0  # 0 to 1, as clients are told
    kv_used: float = 0.0  # share of the memory for keys and values
    queue_seconds: float = 0.0  # how long some session has waited for its turn
    sessions: int = 0
    answering: int = 0  # sessions with a running answer
    process: int = 0
    node: str = ""  # the address of its machine

    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "fingerprint"}


def check_same(fleet: Report, replica: Report) -> None:
    hint = "Give it the fleet's, end the fleet first with moa-server cluster down, or use another --name."
    if fleet.fingerprint != replica.fingerprint:
        other = "other weights of it" if fleet.model == replica.model else fleet.model
        raise MismatchError(f"This replica serves {replica.model}, its fleet {other}.", hint=hint)
    if fleet.execution != replica.execution:
        words = f"This replica computes in {replica.execution}, its fleet in {fleet.execution}."
        raise MismatchError(words, hint=hint)


class Consumption(NamedTuple):
    """What a replica's caller has taken since the last time: `limit` a minute is allowed."""

    limit: float
    amount: float


class Lease(NamedTuple):
    """What a replica may let a caller take until SILENT_SECONDS from now: what is left, and a share of the limit."""

    left: float  # negative: what is owed
    share: float


class QuotaBook:
    """The buckets of all callers of a fleet."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets = Buckets(clock)
        self._seen: dict[str, dict[str, float]] = {}  # when a replica's caller has last taken something

    def leases(self, replica: str, taken: Mapping[str, Consumption]) -> dict[str, Lease]:
        """Takes in what a replica has let through; what it may from now on."""
        leases, now = {}, self._clock()
        for name, (limit, amount) in taken.items():
            bucket = self._buckets.of(name, limit)
            bucket.take(amount)
            seen = {who: at for who, at in self._seen.get(name, {}).items() if now - at < SILENT_SECONDS}
            self._seen[name] = {**seen, replica: now} if amount else seen
            rivals, left = len(seen.keys() | {replica}), bucket.left
            leases[name] = Lease(left / rivals if left > 0.0 else left, 1.0 / rivals)
        self._seen = {name: seen for name, seen in self._seen.items() if seen}
        return leases


class SharedBuckets(Buckets):
    """A replica's buckets: each flows at the share that is leased, else at an even one. `replicas`: that there are."""

    def __init__(self, clock: Callable[[], float], replicas: Callable[[], int]) -> None:
        super().__init__(clock)
        self._replicas = replicas
        self._limits: dict[str, float] = {}
        self._shares: dict[str, tuple[float, float]] = {}  # that are leased, and until when

    def of(self, name: str, per_minute: float, most: float | None = None) -> Bucket:
        share, until = self._shares.get(name, (0.0, 0.0))
        if self._clock() >= until:
            share = 1.0 / max(1, self._replicas())
        self._limits[name] = per_minute
        return super().of(name, max(1.0, per_minute * share), most)

    def taken(self) -> dict[str, Consumption]:
        """What was taken since the last time, of every caller that is remembered."""
        self._limits = {name: self._limits[name] for name in self._kept}
        self._shares = {name: share for name, share in self._shares.items() if name in self._kept}
        result = {name: Consumption(self._limits[name], bucket.taken) for name, bucket in self._kept.items()}
        for bucket in self._kept.values():
            bucket.taken = 0.0
        return result

    def lease(self, leases: Mapping[str, Lease]) -> None:
        """From now on these are in force, less what was taken since `taken` was called."""
        for name in leases.keys() & self._kept.keys():
            self._shares[name] = leases[name].share, self._clock() + SILENT_SECONDS
            bucket = self.of(name, self._limits[name])
            bucket.set_left(leases[name].left - bucket.taken)


@dataclass(frozen=True, slots=True)
class FleetView:
    """What a replica is told at a beat."""

    others: tuple[str, ...]
    leases: Mapping[str, Lease] = field(default_factory=dict)


class Coordinator:
    """The actor, one for each fleet; beats rebuild its state, so that with it nothing is lost but a few seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._quotas = QuotaBook(clock)
        self._reports: dict[str, tuple[Report, float]] = {}

    def beat(self, report: Report, taken: Mapping[str, Consumption]) -> FleetView:
        """A replica is there, and its callers have taken this; raises MismatchError if it serves something else."""
        now, others = self._clock(), [each for each in self.reports() if each.replica != report.replica]
        for other in others:
            check_same(other, report)
        others = [each for each in others if each.address != report.address]  # its successor has the port: it is gone
        kept = {each.replica: self._reports[each.replica] for each in others}
        self._reports = {**kept, report.replica: (report, now)}
        named = sorted((each.load, each.address) for each in others if each.state is State.SERVES)
        return FleetView(tuple(address for _, address in named), self._quotas.leases(report.replica, taken))

    def leave(self, replica: str) -> None:
        self._reports.pop(replica, None)

    def reports(self) -> list[Report]:
        now = self._clock()
        found = [report for report, at in self._reports.values() if now - at < SILENT_SECONDS]
        return sorted(found, key=lambda report: report.address)


LOAD = "moa_load"
TARGET_LOAD = 0.7  # of each replica: what is left takes in the conversations of one that ends


def policy(context: Any) -> tuple[int, dict[str, Any]]:
    """Serve's custom autoscaling policy: how many replicas would have TARGET_LOAD each; Serve decides when."""
    loads = list(((context.aggregated_metrics or {}).get(LOAD) or {}).values())
    # A replica without a record is new: that it brings no load yet is no reason to end it.
    least = context.current_num_replicas if len(loads) < context.current_num_replicas else 1
    return max(least, math.ceil(sum(loads) / TARGET_LOAD - 1e-9)), {}
