"""Token buckets: how much may be taken within a minute. Pure: clock readings are arguments, in seconds.

State: what is left in each bucket. Invariants: a bucket never holds more than one minute's worth; what is left may be
negative, since some amounts are known only once they have been taken; at most MOST_KEPT buckets are remembered, and
those that are forgotten first are full or nearly so.
"""

from __future__ import annotations

import math

MINUTE = 60.0  # seconds
MOST_KEPT = 4096  # buckets of one kind, 200 bytes each


class Bucket:
    """What is left of a minute's worth.

    Args:
        per_minute: how much flows in, and the most that it holds.
        now: it begins full.

    Attributes:
        taken: all that was ever taken, less what was given back.
    """

    def __init__(self, per_minute: int, now: float) -> None:
        self.taken = 0.0
        self._per_minute = per_minute
        self._left = float(per_minute)
        self._at = now

    def left(self, now: float) -> float:
        """What may be taken; negative: what is owed."""
        self._left = min(float(self._per_minute), self._left + self._per_minute * (now - self._at) / MINUTE)
        self._at = now
        return self._left

    def take(self, amount: float, now: float) -> None:
        """Takes an amount, whether it is there or not; a negative one is given back."""
        self._left = self.left(now) - amount
        self.taken += amount

    def seconds_until(self, amount: float, now: float) -> float:
        """How long it takes until `amount` may be taken, which is at most a minute's worth."""
        return max(0.0, min(amount, self._per_minute) - self.left(now)) * MINUTE / self._per_minute

    def set_left(self, amount: float, now: float) -> None:
        """Takes what is left from another server's count."""
        self._left = min(float(self._per_minute), amount)
        self._at = now

    def set_rate(self, per_minute: int, now: float) -> None:
        """What flows in has changed; what is owed stays."""
        if per_minute != self._per_minute:
            self.left(now)
            self._per_minute = per_minute


class Buckets:
    """A bucket for each name."""

    def __init__(self) -> None:
        self._kept: dict[str, Bucket] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, name: str, per_minute: int, now: float) -> Bucket:
        """The bucket of this name, which is full if it is new."""
        bucket = self._kept.get(name)
        if bucket is None:
            if len(self._kept) >= MOST_KEPT:
                self._forget(now)
            bucket = self._kept[name] = Bucket(per_minute, now)
        bucket.set_rate(per_minute, now)
        return bucket

    def _forget(self, now: float) -> None:
        """Forgets the half that is missed least, all full ones among them."""
        waits = {name: bucket.seconds_until(math.inf, now) for name, bucket in self._kept.items()}
        missed = sorted((name for name in waits if waits[name] > 0.0), key=waits.__getitem__)[-MOST_KEPT // 2 :]
        self._kept = {name: self._kept[name] for name in missed}
