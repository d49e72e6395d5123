"""How long a forward of the target takes, with and without draft nodes, as measured on this server.

Rows cost nothing while the weights take longer to read than to compute with, and all of their arithmetic afterwards. So
the test at the start measures forwards of several sizes, and a straight line says how far the forwards of now are from
those: over what their rows were to add, not over the number of rows (docs/adr/0060).

Pure. State: fading sums of that line's fit over the forwards that verified nodes, and a mean of the plain ones.
Plain steps fade the sums too: where one slow forward made drafts look too costly to verify, nothing else would ever
show that they are not. Invariant: never less for more nodes, and never less than a plain step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from moa_shared.drafting.estimates import Smoothed

FADE = 0.97  # of older forwards with each new one: about 30 count, so that a longer context or a new load shows soon
# Until forwards with drafts have been measured, a line through two points, of one node and of the most that the start
# has measured: a draft as such costs 3.5 % of a plain step (its frame is read, its choices are compared), its rows what
# they took there.
SCALE_WEIGHT = 8.0  # so many forwards say as much as the start of how busy the machine is, or how long the contexts are
DRAFT_SHARE = 0.035
NODE_SHARE = 0.0145  # of torch in bf16, where the start measures nothing
MOST_NODES = 32  # to which that holds
LEAST_SHARE = 0.001  # of a plain step that a row takes, so that what the start took for nothing can still be learnt
FEW_NODES = 4  # which are verified together, when nodes are at all
# Of a plain step as it is known: a forward of more rows that takes less shows that plain steps are faster. A server
# that always has several users measures no plain step, and one that was slow would make all rows look free.
CONTRADICTION = 0.8
TOLD_ROWS = 8  # of a draft as devices send it, of which clients are told what a row takes
OUTLIER = 2.0  # times the expected time is the most that counts: the machine did something else meanwhile


@dataclass(frozen=True, slots=True)
class RowShares:
    """What rows add to a forward, in plain steps.

    `points`: rows beyond the first and what they add together, both rising; straight between them, and beyond the last
    one as before it.
    """

    points: tuple[tuple[int, float], ...]

    def of(self, rows: float) -> float:
        before, after = (0, 0.0), self.points[0]
        for point in self.points[1:]:
            if rows <= after[0]:
                break
            before, after = after, point
        return before[1] + (rows - before[0]) * (after[1] - before[1]) / (after[0] - before[0])

    @property
    def most_rows(self) -> int:
        return self.points[-1][0]

    @classmethod
    def straight(cls, share: float) -> RowShares:
        return cls(((MOST_NODES, share * MOST_NODES),))

    @classmethod
    def of_times(cls, plain_ms: float, times: Iterable[tuple[int, float]]) -> RowShares:
        """From what forwards took. `times`: all rows of one and its milliseconds; each has more than the one before."""
        points: list[tuple[int, float]] = []
        beyond, share = 0, 0.0
        for rows, ms in times:
            share = max(ms / plain_ms - 1, share + LEAST_SHARE * (rows - 1 - beyond))
            beyond = rows - 1
            points.append((beyond, share))
        return cls(tuple(points))


@dataclass(frozen=True, slots=True)
class CostLine:
    """A forward's time over its draft nodes: a line over what they add, and never less than a plain step."""

    plain_ms: float
    start_ms: float
    slope_ms: float
    shares: RowShares

    def ms(self, nodes: float) -> float:
        return max(self.plain_ms, self.start_ms + self.slope_ms * self.shares.of(nodes)) if nodes else self.plain_ms

    def least_chance(self, rate: float, nodes: int) -> float:
        """The chance that a further node must have to be worth its row among a few others."""
        return min(1.0, rate * (self.ms(nodes + FEW_NODES) - self.ms(nodes)) / FEW_NODES)


TORCH = RowShares.straight(NODE_SHARE)


class ForwardCost:
    """Estimates a forward's ms from its number of nodes.

    `shares`: what rows added at the start. `plain_ms`: of a plain step there; 0: it was not measured.

    Attributes:
        line: the estimate of now.
    """

    def __init__(self, shares: RowShares = TORCH, plain_ms: float = 0.0) -> None:
        self._shares = shares
        self._plain = Smoothed()
        # Of w, w s, w s s, w t, w s t, where s is what the rows add, and of w t over the prior's.
        self._sums = [0.0] * 6
        self.line = CostLine(0.0, 0.0, 0.0, shares)
        if plain_ms:
            self.add(0, plain_ms)

    @property
    def known(self) -> bool:
        """Whether a plain step has been measured."""
        return self._plain.samples > 0

    @property
    def plain_ms(self) -> float:
        return self._plain.mean

    @property
    def row_ms(self) -> float:
        """What a row of a usual draft adds."""
        return (self.ms(TOLD_ROWS) - self.plain_ms) / TOLD_ROWS

    def ms(self, nodes: int) -> float:
        return self.line.ms(nodes)

    def add(self, nodes: int, ms: float) -> None:
        """A forward has taken so long."""
        if self.known:
            ms = min(ms, OUTLIER * self.ms(nodes))
        self._sums = [FADE * old for old in self._sums]
        if nodes == 0 or ms < CONTRADICTION * self.plain_ms:
            self._plain.add(ms)
        if nodes:
            share = self._shares.of(nodes)
            over_prior = ms / self._prior_ms(share) if self.known else 1.0
            for index, new in enumerate((1.0, share, share * share, ms, share * ms, over_prior)):
                self._sums[index] += new
        self.line = self._fit()

    def _prior_ms(self, share: float) -> float:
        return (1 + DRAFT_SHARE + share) * self.plain_ms

    def _fit(self) -> CostLine:
        """The line, which does not fall, through the forwards and two points of the start that count as one each."""
        total, first, second, time, mixed, times_prior = self._sums
        scale = (SCALE_WEIGHT + times_prior) / (SCALE_WEIGHT + total)
        for nodes in (1, self._shares.most_rows):
            x = self._shares.of(nodes)
            t = scale * self._prior_ms(x)
            total, first, second, time, mixed = total + 1, first + x, second + x * x, time + t, mixed + x * t
        slope = max(0.0, (total * mixed - first * time) / (total * second - first * first))
        return CostLine(self.plain_ms, (time - slope * first) / total, slope, self._shares)
