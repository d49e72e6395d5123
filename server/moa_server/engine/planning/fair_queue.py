"""A queue in which owners take turns: who has much waiting delays only what else is its own. Pure.

State: what waits, by owner; the owner whose turn is next is first. Invariant: between two turns of an owner, each other
one that waits has one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting")


class FairQueue(Generic[Waiting]):
    """What waits for its turn.

    Args:
        owner_of: whose each is.
    """

    def __init__(self, owner_of: Callable[[Waiting], str]) -> None:
        self._owner_of = owner_of
        self._waiting: dict[str, deque[Waiting]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, each: Waiting) -> None:
        """Queues one after the others of its owner."""
        self._waiting.setdefault(self._owner_of(each), deque()).append(each)

    def put_back(self, each: Waiting) -> None:
        """Queues one that was taken before all others, for its turn is not over."""
        owner = self._owner_of(each)
        own = self._waiting.pop(owner, deque())
        own.appendleft(each)
        self._waiting = {owner: own, **self._waiting}

    def take(self) -> Waiting:
        """Takes the first of the owner whose turn it is; to be called only while something waits."""
        owner = next(iter(self._waiting))
        own = self._waiting.pop(owner)
        each = own.popleft()
        if own:
            self._waiting[owner] = own  # its next turn comes after those of all others
        return each

    def clear(self) -> None:
        """Drops all that waits."""
        self._waiting.clear()
