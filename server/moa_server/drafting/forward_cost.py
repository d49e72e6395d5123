"""How long a forward of the target takes, with and without draft nodes, as measured in this session.

Pure. State: fading sums of a straight-line fit over the forwards that verified nodes, and a mean of the plain ones.
Plain steps fade the sums too: where one slow forward made drafts look too costly to verify, nothing else would ever
show that they are not. Invariant: never less for more nodes, and never less than a plain step.
"""

from __future__ import annotations

from dataclasses import dataclass

from moa_shared.drafting.estimates import Smoothed

FADE = 0.97  # of older forwards with each new one: about 30 count, so that a longer context or a new load shows soon
# Until forwards with drafts have been measured, a line through two points: a draft as such costs 3.5 % of a plain step
# (its frame is read, its choices are compared), and each node the same share more.
PRIOR_NODES = (1, 32)
PRIOR_WEIGHT = 1.0  # of each point, in forwards
DRAFT_SHARE = 0.035
NODE_SHARE = 0.0145  # of torch in bf16 (docs/measurements/parts.md); the test at the start measures the kernels
FEW_NODES = 4  # which are verified together, when nodes are at all
OUTLIER = 2.0  # times the expected time is the most that counts: the machine did something else meanwhile


@dataclass(frozen=True, slots=True)
class CostLine:
    """A forward's time over its draft nodes: a line, and never less than a plain step."""

    plain_ms: float
    start_ms: float
    slope_ms: float

    def ms(self, nodes: int) -> float:
        """The expected time of a forward over `nodes` draft nodes."""
        return max(self.plain_ms, self.start_ms + self.slope_ms * nodes) if nodes else self.plain_ms

    def least_chance(self, rate: float, nodes: int) -> float:
        """The chance that a further node must have to be worth its row among a few others.

        Args:
            rate: tokens a millisecond that the time is worth.
            nodes: that the forward has anyway.
        """
        return min(1.0, rate * (self.ms(nodes + FEW_NODES) - self.ms(nodes)) / FEW_NODES)


class ForwardCost:
    """Estimates a forward's ms from its number of nodes.

    Args:
        node_share: the share of a plain step that each node takes, until it has been measured.
    """

    def __init__(self, node_share: float = NODE_SHARE) -> None:
        self._node_share = node_share
        self._plain = Smoothed()
        self._sums = [0.0] * 5  # of w, w n, w n n, w t, w n t

    @property
    def known(self) -> bool:
        """Whether a plain step has been measured."""
        return self._plain.samples > 0

    @property
    def plain_ms(self) -> float:
        return self._plain.mean

    def add(self, nodes: int, ms: float) -> None:
        """Records that a forward over `nodes` draft nodes took `ms`."""
        if self.known:
            ms = min(ms, OUTLIER * self.ms(nodes))
        self._sums = [FADE * old for old in self._sums]
        if nodes == 0:
            self._plain.add(ms)
            return
        for index, new in enumerate((1.0, nodes, nodes * nodes, ms, nodes * ms)):
            self._sums[index] += new

    def ms(self, nodes: int) -> float:
        """The expected time of a forward over `nodes` draft nodes."""
        return self.line().ms(nodes) if nodes else self.plain_ms

    def line(self) -> CostLine:
        """The estimate as it is now."""
        plain = self.plain_ms
        weight, first, second, time, mixed = self._sums
        for count in PRIOR_NODES:
            factor = 1 + DRAFT_SHARE + self._node_share * count
            weight += PRIOR_WEIGHT
            first += PRIOR_WEIGHT * count
            second += PRIOR_WEIGHT * count * count
            time += PRIOR_WEIGHT * factor * plain
            mixed += PRIOR_WEIGHT * factor * plain * count
        slope = max(0.0, (weight * mixed - first * time) / (weight * second - first * first))
        return CostLine(plain, (time - slope * first) / weight, slope)
