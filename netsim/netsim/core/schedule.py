"""How a direction's conditions change with time, and when it is cut or held.

`ConditionSchedule` owns the break points (from a profile, a trace, a ramp, a change while running) and the intervals
of outage and hold. Invariant: break points are sorted and the first is at minus infinity, so every time has conditions.
"""

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence

from netsim.core.conditions import Conditions

RAMP_STEP_S = 0.1  # finer than a packet-scale rate estimator looks, coarse enough for a handful of steps a ramp

Interval = tuple[float, float]


class ConditionSchedule:
    """Conditions over virtual time. With `period_s`, the break points given at the start repeat forever."""

    def __init__(self, points: Sequence[tuple[float, Conditions]], *, period_s: float | None = None) -> None:
        if not points:
            raise ValueError("a schedule needs at least one set of conditions")
        ordered = sorted(points, key=lambda point: point[0])
        self._times = [-math.inf, *(t for t, _ in ordered[1:])]
        self._conditions = [conditions for _, conditions in ordered]
        self._period_s = period_s
        self._cycle = [(max(t, 0.0), conditions) for t, conditions in ordered]
        self._cycles = 1
        self._overlay: Callable[[Conditions], Conditions] | None = None
        self._blackholes: list[Interval] = []
        self._holds: list[Interval] = []

    def _reach(self, t: float) -> None:
        """Repeats the cycle until it covers `t`."""
        if self._period_s is None or not math.isfinite(t):
            return
        while t >= self._cycles * self._period_s:
            offset = self._cycles * self._period_s
            for at, conditions in self._cycle:
                self._times.append(offset + at)
                self._conditions.append(self._overlay(conditions) if self._overlay else conditions)
            self._cycles += 1

    def at(self, t: float) -> Conditions:
        if self._period_s is not None:
            self._reach(t)
        if t >= self._times[-1]:
            return self._conditions[-1]
        return self._conditions[bisect_right(self._times, t) - 1]

    def next_change(self, t: float) -> float:
        """Time of the first break point after `t`; infinite if there is none."""
        if self._period_s is not None:
            self._reach(t + self._period_s)
        if t >= self._times[-1]:
            return math.inf
        return self._times[bisect_right(self._times, t)]

    def finish(self, start: float, bits: float) -> float:
        """When `bits` have been sent if sending begins at `start`; infinite if the rate stays zero."""
        t = start
        while True:
            t = self.held_until(t)
            rate = self.at(t).rate_bps
            if rate == math.inf or t == math.inf:
                return t
            done = t + bits / rate if rate > 0.0 else math.inf
            end = self.next_change(t)
            if self._holds:
                end = min(end, self._next_hold(t))
            if done <= end:
                return done
            bits -= (end - t) * rate
            t = end

    def override(self, t: float, change: Callable[[Conditions], Conditions]) -> None:
        """Applies `change` to the conditions from `t` on: to the present ones and to all that were to come."""
        self._split(t)
        for index in range(bisect_right(self._times, t) - 1, len(self._times)):
            self._conditions[index] = change(self._conditions[index])
        before = self._overlay
        self._overlay = change if before is None else (lambda conditions: change(before(conditions)))

    def replace(self, t: float, target: Conditions, ramp_s: float = 0.0) -> None:
        """From `t` on the conditions become `target`, over a ramp of `ramp_s`; later changes are forgotten."""
        origin = self.at(t)
        self._split(t)
        keep = bisect_right(self._times, t) - 1
        del self._times[keep:], self._conditions[keep:]
        self._period_s = None
        steps = math.ceil(ramp_s / RAMP_STEP_S) if ramp_s > 0.0 else 0
        for step in range(steps):
            self._append(t + step * RAMP_STEP_S, origin.towards(target, (step + 0.5) / steps))
        self._append(t + ramp_s, target)

    def _split(self, t: float) -> None:
        present = self.at(t)
        index = bisect_right(self._times, t)
        if self._times[index - 1] < t:
            self._times.insert(index, t)
            self._conditions.insert(index, present)

    def _append(self, t: float, conditions: Conditions) -> None:
        self._times.append(t if self._times else -math.inf)
        self._conditions.append(conditions)

    def blackhole(self, start: float, end: float) -> None:
        """Packets that enter or leave the link between `start` and `end` are lost."""
        insort(self._blackholes, (start, end))

    def hold(self, start: float, end: float) -> None:
        """Between `start` and `end` nothing is sent and nothing arrives; what waits continues at `end`."""
        insort(self._holds, (start, end))

    def heal(self, t: float) -> None:
        self._blackholes = [(a, min(b, t) if a <= t else b) for a, b in self._blackholes]
        self._holds = [(a, min(b, t) if a <= t else b) for a, b in self._holds]

    def cut_at(self, t: float) -> bool:
        for a, b in self._blackholes:
            if a > t:
                return False
            if t < b:
                return True
        return False

    def forget(self, t: float) -> None:
        """Drops outages and holds that were over at `t`, so that a long run does not search through all of them."""
        for intervals in (self._blackholes, self._holds):
            while intervals and intervals[0][1] <= t:
                del intervals[0]

    def held_until(self, t: float) -> float:
        """`t`, or the end of the holds that contain it."""
        for a, b in self._holds:
            if a > t:
                break
            if t < b:
                t = b
        return t

    def _next_hold(self, t: float) -> float:
        return min((a for a, b in self._holds if a > t and b > a), default=math.inf)
