"""How far a drafter's own chances can be trusted. Pure.

State: how many tokens its verified nodes promised, and how many were right; old ones fade. Invariant: the factor is 0
to `most`, and goes back to its prior while nothing is verified, so a drafter that failed is tried again.
"""

from __future__ import annotations

WEIGHT = 2.0  # a drafter that is never right has lost half of its trust after two tokens that it promised


class Calibration:
    """Tokens that were right over tokens that were promised.

    Args:
        prior: the factor while nothing is known.
        weight: tokens that the prior is worth.
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
        """A verification had no nodes."""
        self._promised *= self._decay
        self._right *= self._decay

    @property
    def factor(self) -> float:
        """By which the drafter's chances are to be multiplied."""
        return min(self._most, (self._prior * self._weight + self._right) / (self._weight + self._promised))
