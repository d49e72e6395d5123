"""How long the server has been lost, how long recent losses lasted, and whether the link can be relied on. Pure.

Clock readings are arguments, in milliseconds. State: when this loss began, until when attempts to connect have shown
it, the durations of the newest ones before, and when the newest loss in any conversation over the link ended.
"""

from __future__ import annotations

import math
from collections import deque

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
        if lasted_ms < LEAST_MS:
            return
        doubt_ms = min(max(TRUSTED_AFTER_MS, TRUSTED_AFTER_TIMES * lasted_ms), MOST_MS)
        self._doubt_ms = doubt_ms if self.is_trusted(now) else max(doubt_ms, self._doubt_ms)
        self._ended_ms = now

    def is_trusted(self, now: float) -> bool:
        """Whether the link has held for so long that it will probably hold."""
        return now >= self._ended_ms + self._doubt_ms


REMEMBERED = 5  # losses
MARGIN = 2.0  # times the longest of them
MOST_TIMES = 2.0  # of the least time: after an hour offline no user wants to wait for another


class Outages:
    """Whether a loss has lasted so long that it will hardly be over in a moment.

    Args:
        least_ms: that this takes, at least.
        losses: of the link, which learn of each that has ended; None: of this conversation alone.
    """

    def __init__(self, least_ms: float, losses: LinkLosses | None = None) -> None:
        self._losses = losses or LinkLosses()
        self._least_ms = least_ms
        self._lengths: deque[float] = deque(maxlen=REMEMBERED)
        self._since: float | None = None
        self.is_trying = False  # an attempt to connect is under way, or will be: it may succeed
        self._failed = -math.inf  # when the newest one has failed
        self._is_long = False  # as last observed

    @property
    def patience_ms(self) -> float:
        """How long a loss must last to be a long one."""
        usual = MARGIN * max(self._lengths, default=0.0)
        return min(max(self._least_ms, usual), MOST_TIMES * self._least_ms)

    @property
    def next_long_ms(self) -> float | None:
        """When this loss will have become a long one; None: there is none, it has already, or an attempt will tell."""
        return None if self._is_long else self.reaches_ms(self.patience_ms)

    def on_failed(self, now: float) -> None:
        self._failed = now

    def known_ms(self, now: float) -> float:
        """Until when this loss is known to last: between two attempts to connect, until the first one failed."""
        return self._failed if self.is_trying else now

    def observe(self, now: float, *, is_served: bool) -> None:
        if is_served:
            if self._since is not None:
                self._lengths.append(now - self._since)
                self._losses.add(now, now - self._since)
            self._since, self._is_long = None, False
            return
        if self._since is None:
            self._since = now
        self._is_long = self.is_long(now)

    def is_link_trusted(self, now: float) -> bool:
        """Whether there is no loss that counts, and none is to be expected after those before."""
        return self._losses.is_trusted(now) and not self.has_lasted(now, LEAST_MS)

    def is_long(self, now: float) -> bool:
        return self.has_lasted(now, self.patience_ms)

    def has_lasted(self, now: float, ms: float) -> bool:
        """Whether this loss has lasted for `ms`."""
        return self._since is not None and (ms <= 0 or self.known_ms(now) - self._since >= ms)

    def reaches_ms(self, ms: float) -> float | None:
        """When this loss has lasted for `ms`; None: there is none, or an attempt to connect will tell."""
        return None if self._since is None or self.is_trying else self._since + ms
