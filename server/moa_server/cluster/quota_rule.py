"""A minute's worth that several replicas share: the book of the fleet, and a replica's buckets under its leases. Pure.

Each replica tells once a second what its callers have taken; the book takes that from one bucket a caller and leases
what is left to those replicas at which the caller has been. Only durations cross: no clock is compared with another.
Invariant: what all replicas have let through in the long run is what one would have; in one burst it is at most
twice that, since a replica that has not asked yet begins with an even share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moa_server.access.buckets import Bucket, Buckets

LEASE_SECONDS = 5.0  # as long as a silent replica counts
Name = tuple[str, str]  # kind of bucket ("tokens") and whose it is


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a replica's caller has taken since the last time: `limit` a minute is allowed."""

    limit: int
    amount: float


@dataclass(frozen=True, slots=True)
class Lease:
    """What a replica may let a caller take until LEASE_SECONDS from now.

    Args:
        left: at once; negative: what is owed.
        share: of the limit, flows in.
    """

    left: float
    share: float


class RateLedger:
    """The callers of a whole fleet."""

    def __init__(self) -> None:
        self._buckets: dict[str, Buckets] = {}
        self._seen: dict[Name, dict[str, float]] = {}  # when a replica's caller has last taken something

    def settle(self, replica: str, taken: Mapping[Name, Consumption], now: float) -> dict[Name, Lease]:
        """Takes in what a replica has let through; what it may from now on.

        Args:
            taken: of each caller that it knows; amounts may be 0.
        """
        leases = {}
        for name, each in taken.items():
            kind, owner = name
            bucket = self._buckets.setdefault(kind, Buckets()).of(owner, each.limit, now)
            bucket.take(each.amount, now)
            seen = {who: at for who, at in self._seen.get(name, {}).items() if now - at < LEASE_SECONDS}
            if each.amount:
                seen[replica] = now
            self._seen[name] = seen
            rivals = len(seen.keys() | {replica})
            left = bucket.left(now)
            leases[name] = Lease(left / rivals if left > 0.0 else left, 1.0 / rivals)
        self._seen = {name: seen for name, seen in self._seen.items() if seen}
        return leases


class SharedBuckets(Buckets):
    """A replica's buckets of one kind: each flows at the share that is leased, else at an even one.

    Args:
        replicas: how many there are.
    """

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
            if (known := self._known.get(name)) is None:
                continue
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
