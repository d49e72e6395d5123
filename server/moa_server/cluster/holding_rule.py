"""What a key may hold at once over all replicas: the book of sessions and of memory. Pure.

Each replica tells once a second what its callers hold. It learns what their answers hold elsewhere, which it takes off
their limits, and how much that is idle it must give up because it was used again at another replica. Invariant: what
answers hold exceeds a limit only by what several replicas let in between two beats, and never for longer than those
answers take.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moa_server.access.holdings import HOLDINGS_SECONDS, KeyUsage
from moa_server.cluster.quota_rule import Name


@dataclass(frozen=True, slots=True)
class RemoteUsage:
    """What a replica learns of one caller.

    Args:
        elsewhere: what its answers hold at other replicas.
        excess: how much that is idle this replica must give up.
    """

    elsewhere: int
    excess: int


@dataclass(slots=True)
class _KeyRecord:
    held: KeyUsage
    grown_at: float  # when it last became more: who has grown last keeps what it has


@dataclass(slots=True)
class _Replica:
    told_at: float
    entries: dict[Name, _KeyRecord] = field(default_factory=dict)


class HoldingBook:
    """The callers of a whole fleet that have a limit."""

    def __init__(self) -> None:
        self._replicas: dict[str, _Replica] = {}

    def settle(self, replica: str, held: Mapping[Name, KeyUsage], now: float) -> dict[Name, RemoteUsage]:
        """Takes in what a replica's callers hold; of each caller with a limit, what matters there.

        Args:
            held: of all callers that hold something; who is not in it holds nothing.
        """
        self._replicas = {name: each for name, each in self._replicas.items() if now - each.told_at < HOLDINGS_SECONDS}
        before = self._replicas.get(replica, _Replica(now)).entries
        entries = {}
        for name, each in held.items():
            known = before.get(name)
            grew = known is None or each.running + each.idle > known.held.running + known.held.idle
            entries[name] = _KeyRecord(each, now if known is None or grew else known.grown_at)
        self._replicas[replica] = _Replica(now, entries)
        elsewhere = self._running_elsewhere(replica)
        rests = {}
        for name in elsewhere.keys() | entries.keys():
            rest = RemoteUsage(elsewhere.get(name, 0), self._excess(name, replica))
            if rest.elsewhere or rest.excess:
                rests[name] = rest
        return rests

    def leave(self, replica: str) -> None:
        """A replica has ended, and holds nothing."""
        self._replicas.pop(replica, None)

    def _running_elsewhere(self, replica: str) -> dict[Name, int]:
        running: dict[Name, int] = {}
        for other, each in self._replicas.items():
            for name, entry in each.entries.items() if other != replica else ():
                if entry.held.running:
                    running[name] = running.get(name, 0) + entry.held.running
        return running

    def _excess(self, name: Name, replica: str) -> int:
        """How much this replica must give up, which counts as done: the others are not told the same."""
        own = self._replicas[replica].entries.get(name)
        if own is None or not own.held.idle:
            return 0
        all_entries = [each.entries[name] for each in self._replicas.values() if name in each.entries]
        if any(entry.held.idle and entry.grown_at < own.grown_at for entry in all_entries):
            return 0  # another one gives up first, at its own beat
        over = sum(entry.held.running + entry.held.idle for entry in all_entries) - own.held.limit
        excess = min(max(0, over), own.held.idle)
        own.held = replace(own.held, idle=own.held.idle - excess)
        return excess
