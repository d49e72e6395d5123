"""What a forward of the target takes, with and without draft nodes, as measured in this session.

Pure. State: fading sums of a straight-line fit over the forwards that verified nodes, and a mean of the plain ones.
Invariant: never less for more nodes, and never less than a plain step.
"""

from __future__ import annotations

from moa_shared.estimates import Smoothed

FADE = 0.97  # of older forwards with each new one: about 30 count, so that a longer context or another load shows soon
# Until forwards with drafts were measured: 5 % more for one node, 50 % for 32 (one core; ../docs/bench.md).
PRIOR = ((1, 1.05), (32, 1.5))
PRIOR_WEIGHT = 0.5
OUTLIER = 3.0  # times what is expected counts as that much: the machine did something else meanwhile


class ForwardCost:
    """ms as a function of the number of nodes."""

    def __init__(self) -> None:
        self._plain = Smoothed()
        self._sums = [0.0] * 5  # of w, w n, w n n, w t, w n t

    @property
    def known(self) -> bool:
        """Whether a plain step was measured."""
        return self._plain.samples > 0

    @property
    def plain_ms(self) -> float:
        return self._plain.mean

    def add(self, nodes: int, ms: float) -> None:
        """A forward over `nodes` draft nodes took so long."""
        if self.known:
            ms = min(ms, OUTLIER * self.ms(nodes))
        if nodes == 0:
            self._plain.add(ms)
            return
        for index, new in enumerate((1.0, nodes, nodes * nodes, ms, nodes * ms)):
            self._sums[index] = FADE * self._sums[index] + new

    def ms(self, nodes: int) -> float:
        """What a forward over `nodes` draft nodes is expected to take."""
        plain = self.plain_ms
        if nodes == 0:
            return plain
        weight, first, second, time, mixed = self._sums
        for count, factor in PRIOR:
            weight += PRIOR_WEIGHT
            first += PRIOR_WEIGHT * count
            second += PRIOR_WEIGHT * count * count
            time += PRIOR_WEIGHT * factor * plain
            mixed += PRIOR_WEIGHT * factor * plain * count
        slope = max(0.0, (weight * mixed - first * time) / (weight * second - first * first))
        return max(plain, (time - slope * first) / weight + slope * nodes)
