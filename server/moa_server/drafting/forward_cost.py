"""How long a forward of the target takes, with and without draft nodes, as measured in this session.

Rows cost nothing while the weights take longer to read than to compute with, and all of their arithmetic afterwards. So
the test at the start measures forwards of several sizes, and a straight line says how far the forwards of now are from
those: over what their rows were to add, not over the number of rows (docs/adr/0060).

Pure. State: fading sums of that line's fit over the forwards that verified nodes, and a mean of the plain ones.
Plain steps fade the sums too: where one slow forward made drafts look too costly to verify, nothing else would ever
show that they are not. Invariant: never less for more nodes, and never less than a plain step.

When a step of the server's drafter, and a node that it guesses, are worth their time. Pure.

Time has a price: at r tokens a millisecond, a millisecond costs r tokens. A step of the drafter takes d milliseconds
and looks at the place where the text leaves what is known with a chance, its *reach*; there it finds `found` tokens on
average. So it gains reach * (found - r * rows) - r * d, where `rows` is what the nodes that it adds cost the forward.
The first nodes can cost more than they find, since a forward over two rows takes longer than a plain step and one over
five hardly longer than that: a step pays if it gains together with some of those that can follow it.
A node pays if its chance outweighs what its row adds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from moa_shared.drafting.estimates import Smoothed, TreeAcceptance
from moa_shared.tree import ROOT, DraftTree

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
    """Estimates a forward's ms from its number of nodes. `shares`: what rows added at the start."""

    def __init__(self, shares: RowShares = TORCH) -> None:
        self._shares = shares
        self._plain = Smoothed()
        # Of w, w s, w s s, w t, w s t, where s is what the rows add, and of w t over the prior's.
        self._sums = [0.0] * 6

    @property
    def known(self) -> bool:
        """Whether a plain step has been measured."""
        return self._plain.samples > 0

    @property
    def plain_ms(self) -> float:
        return self._plain.mean

    def add(self, nodes: int, ms: float) -> None:
        if self.known:
            ms = min(ms, OUTLIER * self.ms(nodes))
        self._sums = [FADE * old for old in self._sums]
        if nodes == 0 or ms < CONTRADICTION * self.plain_ms:
            self._plain.add(ms)
        if nodes == 0:
            return
        share = self._shares.of(nodes)
        over_prior = ms / self._prior_ms(share) if self.known else 1.0
        for index, new in enumerate((1.0, share, share * share, ms, share * ms, over_prior)):
            self._sums[index] += new

    def _prior_ms(self, share: float) -> float:
        return (1 + DRAFT_SHARE + share) * self.plain_ms

    def ms(self, nodes: int) -> float:
        return self.line().ms(nodes) if nodes else self.plain_ms

    def line(self) -> CostLine:
        weight, times_prior = self._sums[0], self._sums[5]
        scale = (SCALE_WEIGHT + times_prior) / (SCALE_WEIGHT + weight)
        shares = [self._shares.of(nodes) for nodes in (1, self._shares.most_rows)]
        start, slope = fit_line(self._sums[:5], [(share, scale * self._prior_ms(share)) for share in shares], 1.0)
        return CostLine(self.plain_ms, start, slope, self._shares)


def fit_line(sums: Sequence[float], prior: Sequence[tuple[float, float]], weight: float) -> tuple[float, float]:
    """Where a straight line begins, and how it rises, which is not down.

    `sums`: over samples of t at x: of w, w x, w x x, w t, w x t. `prior`: points x, t that count as samples of this
    `weight`.
    """
    total, first, second, time, mixed = sums
    for x, t in prior:
        total += weight
        first += weight * x
        second += weight * x * x
        time += weight * t
        mixed += weight * x * t
    slope = max(0.0, (total * mixed - first * time) / (total * second - first * first))
    return (time - slope * first) / total, slope


TOLD_FADE = 0.99  # of older forwards with each new one: about 100 count, an answer or two
PRIOR_ROWS = (1.0, 32.0)  # where the line goes through the start's times, scaled: forwards may all have the same rows
PRIOR_WEIGHT = 0.5
TOLD_OUTLIER = 3.0  # times the expected time is the most that counts: the machine did something else meanwhile


class RunningCost:
    """A forward's ms from its rows.

    `step_ms`, `row_ms`: of a plain step, and of each further row, as measured at the start; 0: they were not.
    """

    def __init__(self, step_ms: float = 0.0, row_ms: float = 0.0) -> None:
        self._start = step_ms, row_ms
        self._expected = self._taken = step_ms  # by the start's times, and indeed
        self._sums = [0.0] * 5  # of w, w n, w n n, w t, w n t
        self._line = self._start

    @property
    def step_ms(self) -> float:
        return self._line[0]

    @property
    def row_ms(self) -> float:
        return self._line[1]

    def add(self, rows: int, ms: float) -> None:
        step_ms, row_ms = self._start
        if not step_ms:
            return
        ms = min(ms, TOLD_OUTLIER * (self.step_ms + self.row_ms * rows))
        self._expected = TOLD_FADE * self._expected + step_ms + row_ms * rows
        self._taken = TOLD_FADE * self._taken + ms
        for index, new in enumerate((1.0, rows, rows * rows, ms, rows * ms)):
            self._sums[index] = TOLD_FADE * self._sums[index] + new
        scale = self._taken / self._expected
        prior = [(x, scale * (step_ms + row_ms * x)) for x in PRIOR_ROWS]
        start, slope = fit_line(self._sums, prior, PRIOR_WEIGHT)
        self._line = (start, slope) if start > 0 else (scale * step_ms, scale * row_ms)


MOST_AHEAD = 8  # steps that are weighed together


@dataclass(frozen=True, slots=True)
class GrowthRule:
    """The rule for one forward.

    Args:
        rate: tokens that a millisecond must bring.
        rows: of the forward, without the nodes that the rule is asked about.
        step_ms: of a step of the drafter; `follow_ms`: of what it reads before the first one.
    """

    rate: float
    cost: CostLine
    rows: int
    step_ms: float
    follow_ms: float
    most_nodes: int

    def pays(
        self,
        reach: float,
        found: float,
        nodes: float,
        *,
        later: float = 0.0,
        drafted: int = 0,
        first: bool = False,
    ) -> bool:
        """Whether to take a step of the drafter, which some more may follow.

        Args:
            reach: the chance that it looks at the right place; `found`: tokens that it finds there, on average, and
                `later`: those of each that follows.
            nodes: that a step adds to the forward where it looks at the right place, on average.
            first: it must read what was committed before.
        """
        step_price = self.rate * self.step_ms
        gain = -self.rate * self.follow_ms if first else 0.0
        rows = float(self.rows + drafted)
        for _ in range(MOST_AHEAD):
            if reach * found <= step_price:
                return False  # nor does any that follows
            nodes_ms = self.cost.ms(rows + nodes) - self.cost.ms(rows)
            gain += reach * (found - self.rate * nodes_ms) - step_price
            if gain > 0.0:
                return True
            reach, found, rows = reach * min(1.0, found), later, rows + nodes
        return False

    @property
    def least_chance(self) -> float:
        """What a node must have so that it can pay among a few others."""
        return self.cost.least_chance(self.rate, self.rows)

    def choose(self, chances: Sequence[float]) -> list[int]:
        """The nodes to verify.

        `chances`: of each node; none has a greater one than its parent, which comes before it.
        """
        order = sorted(range(len(chances)), key=lambda node: (-chances[node], node))[: self.most_nodes]
        plain_ms = self.cost.ms(self.rows)
        best_value, best_count, tokens = 0.0, 0, 0.0
        for count, node in enumerate(order, 1):
            tokens += chances[node]
            value = tokens - self.rate * (self.cost.ms(self.rows + count) - plain_ms)
            if value > best_value:
                best_value, best_count = value, count
        return sorted(order[:best_count])


WEIGHT = 2.0  # a drafter that is never right has lost half of its trust after two tokens that it promised


class Calibration:
    """Tokens that were right over tokens that were promised.

    `decay`: of older samples with each new one; 0.98 remembers about 50 verifications, a paragraph of text. `most`:
    that the factor can be; 1 for chances, more where one promise stands for several tokens.
    """

    def __init__(self, prior: float = 1.0, weight: float = WEIGHT, decay: float = 0.98, most: float = 1.0) -> None:
        self._prior = prior
        self._weight = weight
        self._decay = decay
        self._most = most
        self._promised = 0.0
        self._right = 0.0

    def add(self, promised: float, right: int) -> None:
        """A verification has ended.

        `promised`: the sum of its nodes' chances; `right`: how many of them the text went through.
        """
        self.fade()
        self._promised += promised
        self._right += right

    def fade(self) -> None:
        self._promised *= self._decay
        self._right *= self._decay

    @property
    def factor(self) -> float:
        return min(self._most, (self._prior * self._weight + self._right) / (self._weight + self._promised))


class DraftRecord:
    def __init__(self) -> None:
        self.acceptance = TreeAcceptance()
        self.fruitless_steps = 0  # since a guess was right, whether it was verified or not

    def learn_taken(self, arrived: DraftTree, taken: Sequence[int], *, blind: bool = False) -> None:
        """A forward has chosen tokens.

        `arrived`: the whole draft below the newest token (so that nodes not verified are judged too;
        `Session.arrived_draft()` before `on_verified`). `blind`: the client lacks rows of the prompt, so its guesses
        say nothing about its drafter.
        """
        if not blind:
            self.acceptance.learn(arrived, taken)
        right = bool(arrived and taken) and arrived.child_with(ROOT, taken[0]) is not None
        self.fruitless_steps = 0 if right else self.fruitless_steps + 1

    def survival(self, arrived: DraftTree) -> Sequence[float]:
        return self.acceptance.survival(arrived)
