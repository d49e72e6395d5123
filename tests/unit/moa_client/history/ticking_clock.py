"""A clock for histories."""

from __future__ import annotations


class TickingClock:
    """Goes on by a second each time it is read."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        self.now += 1
        return self.now
