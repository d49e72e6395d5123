"""Which memory rows to send next: newest first, in chunks, within the client's credit.

Pure: knows positions and bytes, not the rows. Invariant: the intervals are disjoint, ascending, and hold exactly the
positions that are ready and not sent.
"""

from __future__ import annotations

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
        """Positions from `length` on do not exist any more; what comes there again is new."""
        self._intervals = [(a, min(b, length)) for a, b in self._intervals if a < length]
        self._ready = min(self._ready, length)

    def take(self, most_rows: int) -> tuple[int, int] | None:
        """(start, count) of the newest rows not yet sent, at most `most_rows`, sent from now on; None if all are."""
        if not self._intervals or most_rows < 1:
            return None
        first, last = self._intervals.pop()
        start = max(first, last - most_rows)
        if start > first:
            self._intervals.append((first, start))
        return start, last - start

    @property
    def ready(self) -> int:
        """Rows of all positions before this one are sent, or wait."""
        return self._ready

    @property
    def waiting(self) -> Sequence[tuple[int, int]]:
        """The intervals [start, stop) that are ready and not sent, ascending."""
        return tuple(self._intervals)
