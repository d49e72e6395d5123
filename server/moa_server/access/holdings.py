"""What callers with a limit hold at once: here, and at the other replicas of a fleet. Pure but for its clock.

State: what runs elsewhere, as it was told last. Invariant: what was told HOLDINGS_SECONDS ago counts no more, so a
caller is never kept out by what cannot be confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

HOLDINGS_SECONDS = 5.0  # as long as a silent replica counts


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """What one caller holds of something at one server.

    Args:
        limit: its key's.
        running: for its answers; `idle`: what it would give up for a new one.
    """

    limit: int
    running: int = 0
    idle: int = 0


def sum_holdings(each: Iterable[tuple[str, int, int, bool]]) -> dict[str, KeyUsage]:
    """What each owner holds.

    Args:
        each: owner, limit, amount, and whether it is idle; a limit of 0 is none.
    """
    result: dict[str, KeyUsage] = {}
    for owner, limit, amount, is_idle in each:
        if limit:
            before = result.get(owner, KeyUsage(limit))
            running, idle = (0, amount) if is_idle else (amount, 0)
            result[owner] = KeyUsage(limit, before.running + running, before.idle + idle)
    return result


class OtherReplicasUsage:
    """What callers' answers hold at other replicas, of one kind.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: Mapping[str, int] = {}
        self._told_at = 0.0

    def running(self, owner: str) -> int:
        """How much; 0 where nothing is known."""
        return self._running.get(owner, 0) if self._clock() - self._told_at < HOLDINGS_SECONDS else 0

    def tell(self, running: Mapping[str, int]) -> None:
        """This is how it is now."""
        self._running, self._told_at = running, self._clock()
