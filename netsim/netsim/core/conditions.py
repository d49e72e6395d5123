"""What a direction of the link is like at one moment: rate, delay, loss, queue. Ramps interpolate between two."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from netsim.core.delay import DelaySpec
from netsim.core.loss import Bernoulli, LossSpec

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
