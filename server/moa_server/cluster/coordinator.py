"""What the replicas of a fleet know of each other: an actor of Ray whose state is rebuilt by their beats.

State: the roster, and the books of quotas and of holdings. Invariant: nothing is lost with it but a few seconds:
replicas continue with what they were told last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from moa_server.access.holdings import KeyUsage
from moa_server.cluster.holding_rule import HoldingBook, RemoteUsage
from moa_server.cluster.quota_rule import Consumption, Lease, Name, RateLedger
from moa_server.cluster.roster import Report, Roster


@dataclass(frozen=True, slots=True)
class FleetView:
    """What a replica learns from a beat.

    Args:
        others: addresses of the other replicas that serve, best first.
        leases: of each caller that was reported.
        rests: of each caller with a limit that holds something anywhere.
    """

    others: tuple[str, ...]
    leases: Mapping[Name, Lease] = field(default_factory=dict)
    rests: Mapping[Name, RemoteUsage] = field(default_factory=dict)


class Coordinator:
    """One for each fleet.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._roster = Roster()
        self._quotas = RateLedger()
        self._holdings = HoldingBook()

    def beat(self, report: Report, taken: Mapping[Name, Consumption], held: Mapping[Name, KeyUsage]) -> FleetView:
        """A replica is there, and its callers have taken and hold this.

        Raises:
            MismatchError: it serves something else than the others.
        """
        now = self._clock()
        self._roster.take(report, now)
        return FleetView(
            tuple(self._roster.others(report.replica, now)),
            self._quotas.settle(report.replica, taken, now),
            self._holdings.settle(report.replica, held, now),
        )

    def leave(self, replica: str) -> None:
        """A replica has ended."""
        self._roster.leave(replica)
        self._holdings.leave(replica)

    def reports(self) -> list[Report]:
        """All replicas."""
        return self._roster.reports(self._clock())
