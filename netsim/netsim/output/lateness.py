"""How late releases were: a histogram with buckets 2 % wide, so that any number of packets costs the same memory."""

from __future__ import annotations

import math
from typing import NamedTuple

_RATIO = math.log(1.02)
_FLOOR_S = 1e-6

MEDIAN_LIMIT_S = 0.3e-3
P99_LIMIT_S = 5e-3


class Lateness(NamedTuple):
    """Quantiles of lateness, in ms; `flagged` if the machine was too busy for the run to be trusted."""

    releases: int
    median_ms: float
    p99_ms: float
    max_ms: float
    flagged: bool


class LatenessHistogram:
    """A histogram of lateness, in seconds."""

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = 0
        self._max_s = 0.0

    def add(self, seconds: float) -> None:
        """One release that came so late (0 if it was on time)."""
        bucket = int(math.log(seconds / _FLOOR_S) / _RATIO) + 1 if seconds > _FLOOR_S else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1
        self._max_s = max(self._max_s, seconds)

    def quantile_s(self, share: float) -> float:
        """Upper edge of the bucket that holds the quantile; 0 if nothing was counted."""
        left = share * self._count
        for bucket in sorted(self._buckets):
            left -= self._buckets[bucket]
            if left <= 0.0:
                return min(_FLOOR_S * math.exp(bucket * _RATIO), self._max_s)
        return self._max_s

    def summary(self) -> Lateness:
        """Quantiles, and whether they are beyond the limits: median 0.3 ms, 99 % 5 ms."""
        median, p99 = self.quantile_s(0.5), self.quantile_s(0.99)
        flagged = median > MEDIAN_LIMIT_S or p99 > P99_LIMIT_S
        return Lateness(self._count, median * 1e3, p99 * 1e3, self._max_s * 1e3, flagged)
