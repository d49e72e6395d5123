"""Which of the arrived draft nodes to verify: those whose chance to be right outweighs what they add to the forward.

Pure. State: what was measured in this session: the cost of forwards, the acceptance, the recent rate of tokens.
Invariant: the nodes chosen are a tree: a node never comes without its parents.

The rule. A forward over k nodes takes C(k) and yields S tokens on average: 1 + the survival probabilities of the
nodes. At a rate of r tokens a millisecond so far, take the nodes that maximise S - r C(k): r is the price of time
(Howard, Dynamic Programming and Markov Processes, 1960). Waiting for a draft that is due does not pay: docs/adr/0011.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.drafting.estimates import Smoothed, TreeAcceptance
from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree

from moa_server.engine.forward_cost import NODE_SHARE, ForwardCost

RECENT = 1 / 16  # weight of a step in the rate, which spans an answer's first paragraph


class NodeChoice:
    """Chooses a session's nodes: pass `choose` to `Session.plan_step`, call `on_step` when a forward chose tokens.

    Args:
        most_nodes: of one verification.
        node_share: the share of a plain step that each node takes, until it has been measured.
    """

    def __init__(self, most_nodes: int, node_share: float = NODE_SHARE) -> None:
        self.cost = ForwardCost(node_share)
        self.acceptance = TreeAcceptance()
        self._most_nodes = most_nodes
        self.fruitless_steps = 0  # since a guess was right, whether it was verified or not
        self._tokens = Smoothed(weight=RECENT)  # of a step, and what it took
        self._ms = Smoothed(weight=RECENT)

    def on_step(
        self, step_ms: float, verified: int, arrived: DraftTree, taken: Sequence[int], *, blind: bool = False
    ) -> None:
        """A forward that chose tokens has ended.

        Args:
            step_ms: how long it took.
            verified: draft nodes in it.
            arrived: the whole draft below the newest token (so that nodes not verified are judged too;
                `Session.arrived_draft()` before `on_verified`).
            taken: tokens that it committed.
            blind: the client lacks rows of the prompt, so its guesses say nothing about its drafter.
        """
        self.cost.add(verified, step_ms)
        if not blind:
            self.acceptance.learn(arrived, taken)
        right = bool(taken) and arrived.child_with(ROOT, taken[0]) is not None
        self.fruitless_steps = 0 if right else self.fruitless_steps + 1
        self._tokens.add(len(taken))
        self._ms.add(step_ms)

    def choose(self, arrived: DraftTree) -> DraftTree:
        """The nodes below the newest token to verify now; none: a plain step."""
        if not self.cost.known:
            return arrived.prefix(self._most_nodes)
        survival = self.acceptance.survival(arrived)
        order = sorted(range(len(arrived)), key=lambda node: (-survival[node], node))  # a parent before its children
        best, best_nodes, tokens = -self.rate * self.cost.ms(0), 0, 0.0
        for nodes, node in enumerate(order[: self._most_nodes], 1):
            tokens += survival[node]
            value = tokens - self.rate * self.cost.ms(nodes)
            if value > best:
                best, best_nodes = value, nodes
        return arrived.pick(order[:best_nodes])

    @property
    def rate(self) -> float:
        """The recent rate in tokens per millisecond, at least that of plain steps."""
        return max(1 / self.cost.ms(0), self._tokens.mean / self._ms.mean)
