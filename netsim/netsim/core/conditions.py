"""What a direction of a link is like: delay, loss, rate and queue. Pure."""

from __future__ import annotations

import math
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
