"""What a caller may take in a minute, and hold at once, over all replicas of a fleet. Pure.

Each replica tells once a second what its callers have taken and hold. What they take comes from one bucket a caller;
what is left is leased to those replicas at which the caller has been. Of what they hold a replica learns what answers
hold elsewhere, which it takes off the limit, and how much that is idle it must give up because it was used again at
another one. Only durations cross: no clock is compared with another.
Invariant: in the long run all replicas let through what one would; in one burst at most twice that, since a replica
that has not asked yet begins with an even share. What answers hold exceeds a limit only by what several replicas let in
between two beats.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from moa_server.access.limits import HOLDINGS_SECONDS, Bucket, Buckets, KeyUsage

LEASE_SECONDS = 5.0  # as long as a silent replica counts
Name = tuple[str, str]  # kind of bucket or of holding ("tokens") and whose it is


class Consumption(NamedTuple):
    """What a replica's caller has taken since the last time: `limit` a minute is allowed."""

    limit: int
    amount: float


class Lease(NamedTuple):
    """What a replica may let a caller take until LEASE_SECONDS from now: what is left, and a share of the limit."""

    left: float  # negative: what is owed
    share: float


class RemoteUsage(NamedTuple):
    """What a caller's answers hold at other replicas, and how much that is idle this replica must give up."""

    elsewhere: int
    excess: int


class QuotaBook:
    def __init__(self) -> None:
        self._buckets: dict[str, Buckets] = {}
        self._seen: dict[Name, dict[str, float]] = {}  # when a replica's caller has last taken something
        # When a replica it told, what its callers hold, and when each last grew; who has grown last keeps what it has.
        self._held: dict[str, tuple[float, dict[Name, tuple[KeyUsage, float]]]] = {}

    def leases(self, replica: str, taken: Mapping[Name, Consumption], now: float) -> dict[Name, Lease]:
        """Takes in what a replica has let through; what it may from now on."""
        leases = {}
        for name, (limit, amount) in taken.items():
            bucket = self._buckets.setdefault(name[0], Buckets()).of(name[1], limit, now)
            bucket.take(amount, now)
            seen = {who: at for who, at in self._seen.get(name, {}).items() if now - at < LEASE_SECONDS}
            self._seen[name] = {**seen, replica: now} if amount else seen
            rivals, left = len(seen.keys() | {replica}), bucket.left(now)
            leases[name] = Lease(left / rivals if left > 0.0 else left, 1.0 / rivals)
        self._seen = {name: seen for name, seen in self._seen.items() if seen}
        return leases

    def rests(self, replica: str, held: Mapping[Name, KeyUsage], now: float) -> dict[Name, RemoteUsage]:
        """Takes in what a replica's callers hold; of each caller with a limit, what matters there."""
        self._held = {who: each for who, each in self._held.items() if now - each[0] < HOLDINGS_SECONDS}
        before = self._held.get(replica, (now, {}))[1]
        own = {name: (usage, _grown_at(usage, before.get(name), now)) for name, usage in held.items()}
        self._held[replica] = now, own
        rests = {}
        for name in {name for _, each in self._held.values() for name in each}:
            all_of = {who: each[name] for who, (_, each) in self._held.items() if name in each}
            elsewhere = sum(usage.running for who, (usage, _) in all_of.items() if who != replica)
            excess = 0
            if name in own and own[name][0].idle:
                usage, grown_at = own[name]
                if not any(other.idle and at < grown_at for other, at in all_of.values()):  # they give up first
                    over = sum(other.total for other, _ in all_of.values()) - usage.limit
                    excess = min(max(0, over), usage.idle)
                    own[name] = replace(usage, idle=usage.idle - excess), grown_at  # counts as done
            if elsewhere or excess:
                rests[name] = RemoteUsage(elsewhere, excess)
        return rests

    def leave(self, replica: str) -> None:
        self._held.pop(replica, None)


def _grown_at(usage: KeyUsage, known: tuple[KeyUsage, float] | None, now: float) -> float:
    return now if known is None or usage.total > known[0].total else known[1]


class SharedBuckets(Buckets):
    """A replica's buckets of one kind: each flows at the share that is leased, else at an even one."""

    def __init__(self, replicas: Callable[[], int]) -> None:
        super().__init__()
        self._replicas = replicas
        self._known: dict[str, _Known] = {}

    def of(self, name: str, per_minute: int, now: float) -> Bucket:
        known = self._known.get(name)
        share = 1.0 / max(1, self._replicas())
        if known is not None and known.share is not None and now < known.until:
            share = known.share
        bucket = super().of(name, max(1, round(per_minute * share)), now)
        if known is None or known.bucket is not bucket:  # new, or forgotten meanwhile
            self._known[name] = known = _Known(bucket, per_minute, bucket.taken)
        known.limit = per_minute
        return bucket

    def taken(self) -> dict[str, Consumption]:
        """What was taken since the last time, of every caller that is remembered."""
        result = {}
        for name, known in self._known.items():
            total = known.bucket.taken
            result[name] = Consumption(known.limit, total - known.told)
            known.told = total
        return result

    def lease(self, leases: Mapping[str, Lease], now: float) -> None:
        """From now on these are in force, less what was taken since `taken` was called."""
        for name, lease in leases.items():
            if (known := self._known.get(name)) is not None:
                known.share, known.until = lease.share, now + LEASE_SECONDS
                bucket = self.of(name, known.limit, now)
                bucket.set_left(lease.left - (bucket.taken - known.told), now)


@dataclass(slots=True)
class _Known:
    bucket: Bucket
    limit: int
    told: float
    share: float | None = None
    until: float = 0.0
