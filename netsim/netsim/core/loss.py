"""Losses of packets: independent (Bernoulli) or in bursts (Gilbert-Elliott, two states with a loss rate each).

The specifications are values; `LossProcess` owns the random source and the state (good or bad) and keeps it when the
specification changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Independent losses: each packet is lost with this probability."""

    probability: float = 0.0

    @property
    def mean(self) -> float:
        """Share of packets lost in the long run."""
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
        """Share of packets lost in the long run."""
        bad = self.enter_bad / (self.enter_bad + self.leave_bad)
        return (1.0 - bad) * self.loss_good + bad * self.loss_bad


LossSpec = Bernoulli | GilbertElliott


class LossProcess:
    """Decides for each packet whether it is lost."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._bad = False

    def lost(self, spec: LossSpec) -> bool:
        """True if the next packet is lost."""
        if isinstance(spec, Bernoulli):
            return spec.probability > 0.0 and self._random.random() < spec.probability
        turn = self._random.random()
        if self._bad:
            self._bad = turn >= spec.leave_bad
        else:
            self._bad = turn < spec.enter_bad
        return self._random.random() < (spec.loss_bad if self._bad else spec.loss_good)
