"""Which memory rows to send next: newest first, in chunks, within the client's credit.

Pure: knows positions and bytes, not the rows. Invariant: the intervals are disjoint, ascending, and hold exactly the
positions that are ready and not sent.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class MemoryOutbox:
    """Positions of one plane that the client still lacks.

    Args:
        start: first position that the client lacks.
    """

    def __init__(self, start: int = 0) -> None:
        self._intervals: list[tuple[int, int]] = []
        self._ready = start

    def rows_ready(self, stop: int) -> None:
        """Rows of all positions before `stop` can be sent."""
        if stop <= self._ready:
            return
        if self._intervals and self._intervals[-1][1] == self._ready:
            self._intervals[-1] = (self._intervals[-1][0], stop)
        else:
            self._intervals.append((self._ready, stop))
        self._ready = stop

    def crop(self, length: int) -> None:
        """Positions from `length` on no longer exist; what comes there again is new."""
        self._intervals = [(a, min(b, length)) for a, b in self._intervals if a < length]
        self._ready = min(self._ready, length)

    def owes(self, start: int, stop: int) -> bool:
        """Whether a row of the positions `start` to `stop` - 1 is not sent."""
        return any(first < stop and start < end for first, end in self._intervals)

    def take(self, most_rows: int, stop: int, begin: int = 0) -> tuple[int, int] | None:
        """(start, count) of the newest rows before `stop` that are not sent, at most `most_rows`; None if all are.

        They count as sent from now on.

        Args:
            begin: rows before this position are left.
        """
        place = bisect_left(self._intervals, (stop,)) - 1  # of the last interval that begins before `stop`
        if place < 0 or most_rows < 1:
            return None
        first, end = self._intervals[place]
        last = min(end, stop)
        start = max(first, last - most_rows, begin)
        if start >= last:
            return None
        self._intervals[place : place + 1] = [(a, b) for a, b in ((first, start), (last, end)) if a < b]
        return start, last - start

    def claim(self, start: int, stop: int) -> bool:
        """Takes these rows, which count as sent from now on; False if they do not all wait."""
        waits = any(first <= start and stop <= end for first, end in self._intervals)
        return waits and self.take(stop - start, stop) is not None

    @property
    def ready(self) -> int:
        """Rows of all positions before this one are sent, or wait."""
        return self._ready

    @property
    def waiting(self) -> Sequence[tuple[int, int]]:
        """The intervals [start, stop) that are ready and not sent, ascending."""
        return tuple(self._intervals)
