"""How good the drafts of one session are. Pure.

State: the acceptance by rank and depth, and how many steps in a row no guess was right.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.drafting.estimates import TreeAcceptance
from moa_shared.tree.arithmetic import ROOT
from moa_shared.tree.draft_tree import DraftTree


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
            taken: tokens that it committed.
            blind: the client lacks rows of the prompt, so its guesses say nothing about its drafter.
        """
        if not blind:
            self.acceptance.learn(arrived, taken)
        right = bool(taken) and arrived.child_with(ROOT, taken[0]) is not None
        self.fruitless_steps = 0 if right else self.fruitless_steps + 1

    def survival(self, arrived: DraftTree) -> Sequence[float]:
        """The chance of each node to be right; never more than that of its parent."""
        return self.acceptance.survival(arrived)
