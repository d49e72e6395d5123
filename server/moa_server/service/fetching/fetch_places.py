"""The places for downloads of the drafter, shared between those who want them.

State: the downloads under way. Invariants: there are never more than MOST_PLACES; an owner with several cannot keep out
one with fewer; and a download that stands still keeps its place only while no other caller wants it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from moa_shared.errors import OverloadedError

MOST_PLACES = 16  # each holds a range of a file
STILL_SECONDS = 1.0  # without a chunk of 64 KiB taken in; a download at 1 Mbit/s takes one in every half second


class FetchPlace:
    """The place of one download.

    Args:
        owner: whose it is: a key's, or an address.
        now: a clock reading.
    """

    def __init__(self, owner: str, now: float) -> None:
        self.owner = owner
        self.moved_at = now
        self.limit = asyncio.timeout(None)
        self.is_lost = False

    def moved(self, now: float) -> None:
        """The client has taken something in."""
        self.moved_at = now

    def give_up(self) -> None:
        """Ends the download: another one needs its place."""
        self.is_lost = True
        self.limit.reschedule(0.0)


class FetchPlaces:
    """All places.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken: list[FetchPlace] = []

    @asynccontextmanager
    async def take(self, owner: str) -> AsyncIterator[Callable[[], None]]:
        """Holds a place; yields what is to be called whenever the client has taken something in.

        Raises:
            OverloadedError: there is none, or another download needs it more.
        """
        self._make_room(owner)
        place = FetchPlace(owner, self._clock())
        self._taken.append(place)
        try:
            async with place.limit:
                yield lambda: place.moved(self._clock())
        except TimeoutError:
            if not place.is_lost:
                raise
            raise OverloadedError(
                "Another download needs the place of this one, which stood still or is one of many.",
                hint="Call again to resume.",
            ) from None
        finally:
            if not place.is_lost:
                self._taken.remove(place)

    def _make_room(self, owner: str) -> None:
        """Takes a place from one who has more than this owner will have, else from a download that stands still."""
        if len(self._taken) < MOST_PLACES:
            return
        held = Counter(place.owner for place in self._taken)
        most = max(held.values(), default=0)
        if most > held[owner] + 1:
            candidates = [place for place in self._taken if held[place.owner] == most]
        else:
            still_since = self._clock() - STILL_SECONDS
            candidates = [place for place in self._taken if place.moved_at <= still_since]
        if not candidates:
            raise OverloadedError(f"{MOST_PLACES} devices are fetching the drafter already.")
        lost = min(candidates, key=lambda place: place.moved_at)
        self._taken.remove(lost)
        lost.give_up()
