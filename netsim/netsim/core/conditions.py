"""What a direction of a link is like, and how that changes: delay, loss, rate and queue, cuts and holds. Pure.

`ConditionSchedule` owns the break points (from a profile, a trace, a ramp, a change while running) and the intervals
of outage and hold. Invariant: break points are sorted and the first is at minus infinity, so every time has conditions.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from random import Random
from statistics import NormalDist
from typing import NamedTuple

_STANDARD = NormalDist()
_TINY = 1e-300  # inv_cdf is defined on the open interval (0, 1)


class Truncation(StrEnum):
    """What becomes of the part of the normal distribution below zero."""

    REJECT = "reject"  # drawn again: the mean rises, 21 +- 19 becomes 25.75 +- 15.4
    CLAMP = "clamp"  # set to zero: an atom at zero, 22.3 +- 16.8
    PRESERVE_MEAN = "preserve_mean"  # drawn again from a parent whose centre keeps the stated mean


class Moments(NamedTuple):
    """Mean and standard deviation of a delay, in ms."""

    mean_ms: float
    deviation_ms: float


@dataclass(frozen=True, slots=True)
class DelaySpec:
    """Distribution of the delay of one direction. `scale` is 0.5 where the numbers describe a round trip."""

    mean_ms: float = 0.0
    deviation_ms: float = 0.0
    truncation: Truncation = Truncation.REJECT
    correlation_ms: float = 50.0  # how long a mobile link stays slow or fast; 0 draws independently for each packet
    scale: float = 1.0

    def quantile_s(self, x: float) -> float:
        """Delay in seconds at the standard normal deviate `x` (the inverse distribution at Phi(x))."""
        if self.deviation_ms == 0.0:
            return self.mean_ms * self.scale * 1e-3
        if self.truncation is Truncation.CLAMP:
            return max(0.0, self.mean_ms + self.deviation_ms * x) * self.scale * 1e-3
        centre, kept = _parent(self.mean_ms, self.deviation_ms, self.truncation)
        # The upper tail, not the lower, is mapped: it keeps its precision where the truncated draw lies far out.
        upper = max(0.5 * math.erfc(x / math.sqrt(2.0)) * kept, _TINY)
        if upper >= 1.0:
            return 0.0
        return max(0.0, centre - self.deviation_ms * _STANDARD.inv_cdf(upper)) * self.scale * 1e-3

    def effective(self) -> Moments:
        """Mean and deviation of the draws themselves, after truncation and scale."""
        mean, deviation = self.mean_ms, self.deviation_ms
        if deviation > 0.0 and self.truncation is Truncation.CLAMP:
            ratio = mean / deviation
            below, density = _STANDARD.cdf(ratio), _STANDARD.pdf(ratio)
            first = mean * below + deviation * density
            second = (mean**2 + deviation**2) * below + mean * deviation * density
            mean, deviation = first, math.sqrt(max(0.0, second - first**2))
        elif deviation > 0.0:
            centre, _ = _parent(mean, deviation, self.truncation)
            mean, deviation = _rejected(centre, deviation)
        return Moments(mean * self.scale, deviation * self.scale)


def _rejected(centre: float, deviation: float) -> Moments:
    """Moments of a normal conditioned on being positive."""
    a = -centre / deviation
    hazard = _STANDARD.pdf(a) / max(0.5 * math.erfc(a / math.sqrt(2.0)), _TINY)
    variance = max(0.0, 1.0 + a * hazard - hazard**2)
    return Moments(centre + deviation * hazard, deviation * math.sqrt(variance))


@lru_cache(maxsize=4096)
def _parent(mean: float, deviation: float, truncation: Truncation) -> tuple[float, float]:
    """Centre of the parent normal, and the share of it that lies above zero."""
    centre = mean
    if truncation is Truncation.PRESERVE_MEAN:
        # The mean of the truncated normal grows with the centre; 30 deviations below zero it is deviation / 30.
        low, high = -30.0 * deviation, mean
        for _ in range(80):
            centre = (low + high) / 2.0
            low, high = (centre, high) if _rejected(centre, deviation).mean_ms < mean else (low, centre)
    return centre, 0.5 * math.erfc(-centre / deviation / math.sqrt(2.0))


class DelayProcess:
    """Draws delays for one direction; owns the state x of the process and the time of the last draw."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._x = self._fresh()
        self._t = -math.inf

    def _fresh(self) -> float:
        return _STANDARD.inv_cdf(max(self._random.random(), _TINY))

    def draw_s(self, spec: DelaySpec, t: float) -> float:
        """Delay in seconds of a packet that leaves the queue at time `t`; times must not go back."""
        if spec.deviation_ms == 0.0:
            return spec.mean_ms * spec.scale * 1e-3
        if spec.correlation_ms == 0.0:
            return spec.quantile_s(self._fresh())
        elapsed_ms = (t - self._t) * 1e3
        if elapsed_ms > 0.0:
            # Exact discretisation: the correlation over a gap is exp(-gap / time constant).
            keep = math.exp(-elapsed_ms / spec.correlation_ms)
            self._x = keep * self._x + math.sqrt(1.0 - keep * keep) * self._fresh()
            self._t = t
        return spec.quantile_s(self._x)


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Independent losses: each packet is lost with this probability, and so is a share `mean` in the long run."""

    probability: float = 0.0

    @property
    def mean(self) -> float:
        return self.probability


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Losses in bursts, from a good and a bad state; all four numbers are probabilities per packet."""

    enter_bad: float
    leave_bad: float
    loss_good: float = 0.0
    loss_bad: float = 1.0

    @property
    def mean(self) -> float:
        bad = self.enter_bad / (self.enter_bad + self.leave_bad)
        return (1.0 - bad) * self.loss_good + bad * self.loss_bad


LossSpec = Bernoulli | GilbertElliott


class LossProcess:
    """Decides for each packet whether it is lost."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._bad = False

    def lost(self, spec: LossSpec) -> bool:
        if isinstance(spec, Bernoulli):
            return spec.probability > 0.0 and self._random.random() < spec.probability
        turn = self._random.random()
        if self._bad:
            self._bad = turn >= spec.leave_bad
        else:
            self._bad = turn < spec.enter_bad
        return self._random.random() < (spec.loss_bad if self._bad else spec.loss_good)


KIB = 1024


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of one direction. `rate_bps` counts packets with headers, in bits per second; infinite: no limit."""

    rate_bps: float = math.inf
    delay: DelaySpec = field(default_factory=DelaySpec)
    loss: LossSpec = field(default_factory=Bernoulli)
    queue_bytes: int = 256 * KIB  # a modest buffer of a radio link: 105 ms at 20 Mbit/s
    burst_bytes: int = 0

    def towards(self, other: Conditions, share: float) -> Conditions:
        """Interpolates rate and delay linearly; loss model, queue and an infinite rate change at the end."""
        if share >= 1.0:
            return other
        rate = self.rate_bps
        if math.isfinite(rate) and math.isfinite(other.rate_bps):
            rate += (other.rate_bps - rate) * share
        a, b = self.delay, other.delay
        mean = a.mean_ms * a.scale + (b.mean_ms * b.scale - a.mean_ms * a.scale) * share
        deviation = a.deviation_ms * a.scale + (b.deviation_ms * b.scale - a.deviation_ms * a.scale) * share
        delay = replace(a, mean_ms=mean, deviation_ms=deviation, scale=1.0)
        loss = self.loss
        if isinstance(loss, Bernoulli) and isinstance(other.loss, Bernoulli):
            loss = Bernoulli(loss.probability + (other.loss.probability - loss.probability) * share)
        return replace(self, rate_bps=rate, delay=delay, loss=loss)


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
                end = min([end, *(a for a, b in self._holds if a > t and b > a)])
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
