"""The losses of a link, in all conversations over it, and whether it can be relied on. Pure.

Clock readings are arguments, in milliseconds. State: when the newest loss ended, and how long it and the longest of
those shortly before it lasted.
"""

from __future__ import annotations

import math

LEAST_MS = 300.0  # shorter ones are hiccups of busy machines and radios, in which a device writes three words at most
TRUSTED_AFTER_MS = 600_000.0  # without a loss: on a drive or a train the next one comes within minutes
TRUSTED_AFTER_TIMES = 60.0  # as long as the longest loss took: a link that was slow to return may be so again
MOST_MS = 3_600_000.0  # after an hour online what was before does not matter any more


class LinkLosses:
    """When servers were lost, and for how long."""

    def __init__(self) -> None:
        self._ended_ms = -math.inf
        self._doubt_ms = 0.0  # for so long after the newest loss the next one is expected

    def add(self, now: float, lasted_ms: float) -> None:
        """A loss has ended."""
        if lasted_ms < LEAST_MS:
            return
        doubt_ms = min(max(TRUSTED_AFTER_MS, TRUSTED_AFTER_TIMES * lasted_ms), MOST_MS)
        self._doubt_ms = doubt_ms if self.is_trusted(now) else max(doubt_ms, self._doubt_ms)
        self._ended_ms = now

    def is_trusted(self, now: float) -> bool:
        """Whether the link has held for so long that it will probably hold."""
        return now >= self._ended_ms + self._doubt_ms
