"""When a step of the server's drafter, and a node that it guesses, are worth their time. Pure.

Time has a price: at r tokens a millisecond, a millisecond costs r tokens. A step of the drafter takes d milliseconds
and looks at the place where the text leaves what is known with a chance, its *reach*; there it finds `found` tokens on
average. So it gains reach * (found - r * rows) - r * d, where `rows` is what the nodes that it adds cost the forward.
The first nodes can cost more than they find, since a forward over two rows takes longer than a plain step and one over
five hardly longer than that: a step pays if it gains together with some of those that can follow it.
A node pays if its chance outweighs what its row adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moa_shared.drafting.estimates import TreeAcceptance
from moa_shared.tree import ROOT, DraftTree

from moa_server.drafting.forward_cost import CostLine

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

        Args:
            chances: of each node; none has a greater one than its parent, which comes before it.
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

    Args:
        decay: of older samples with each new one; 0.98 remembers about 50 verifications, a paragraph of text.
        most: that the factor can be; 1 for chances, more where one promise stands for several tokens.
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

        Args:
            promised: the sum of its nodes' chances; `right`: how many of them the text went through.
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
    """What verifications have shown about one drafter."""

    def __init__(self) -> None:
        self.acceptance = TreeAcceptance()
        self.fruitless_steps = 0  # since a guess was right, whether it was verified or not

    def learn(self, arrived: DraftTree, taken: Sequence[int], *, blind: bool = False) -> None:
        """A forward has chosen tokens.

        Args:
            arrived: the whole draft below the newest token (so that nodes not verified are judged too;
                `Session.arrived_draft()` before `on_verified`).
            blind: the client lacks rows of the prompt, so its guesses say nothing about its drafter.
        """
        if not blind:
            self.acceptance.learn(arrived, taken)
        right = bool(taken) and arrived.child_with(ROOT, taken[0]) is not None
        self.fruitless_steps = 0 if right else self.fruitless_steps + 1

    def survival(self, arrived: DraftTree) -> Sequence[float]:
        """The chance of each node to be right; never more than that of its parent."""
        return self.acceptance.survival(arrived)
