"""The other replicas of a fleet, as clients are told of them. Pure.

State: their direct addresses, and who was named first last time. The fleet keeps it true: by an option, a name
in DNS, or a cluster. Invariant: each client is told of at most as many as clients look at, each of them HOST:PORT.
"""

from __future__ import annotations

from collections.abc import Iterable

from moa_shared.programs.addresses import MOST_SUCCESSORS, is_host_port


class Membership:
    """The servers that can continue a conversation of this one.

    Args:
        others: HOST:PORT of each.
        ranked: best first; otherwise each client is told of another one first, so that they spread.
    """

    def __init__(self, others: Iterable[str] = (), *, ranked: bool = False) -> None:
        self.others: tuple[str, ...] = ()
        self._is_ranked = False
        self._first = 0
        self.update(others, ranked=ranked)

    def update(self, others: Iterable[str], *, ranked: bool = False) -> None:
        """Names these to clients from now on."""
        self.others = tuple(dict.fromkeys(each for each in others if is_host_port(each)))
        self._is_ranked = ranked

    def names(self) -> tuple[str, ...]:
        """What to tell the next client."""
        if not self.others or self._is_ranked:
            return self.others[:MOST_SUCCESSORS]
        first, self._first = self._first % len(self.others), self._first + 1
        return (self.others[first:] + self.others[:first])[:MOST_SUCCESSORS]
