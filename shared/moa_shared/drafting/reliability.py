"""Stated chances, corrected by how often guesses of such chances were right. Pure.

A curve has one share for each of some equally wide bins of chances, and never falls: a guess with a greater chance is
not believed less. Between the bins' middles it is a straight line.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

BINS = 20
BIN_WEIGHT = 10.0  # guesses that a bin's own chance is worth


class ReliabilityCurve:
    """What stated chances are worth.

    Args:
        shares: of right guesses in each bin, ascending from the chance 0 to 1.

    Raises:
        ValueError: no shares, or ones that fall or are no chances.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        rising = all(before <= after for before, after in pairwise(shares))
        if not shares or not rising or shares[0] < 0 or shares[-1] > 1:
            raise ValueError("shares that fall, or are not between 0 and 1")
        self.shares = tuple(shares)
        self._middles = (np.arange(len(shares)) + 0.5) / len(shares)

    def corrected(self, chance: float) -> float:
        """The share of right guesses among those of such a chance."""
        return float(np.interp(chance, self._middles, self.shares))


class ReliabilityCounts:
    """Counts guesses by their stated chance. State: tries and right ones of each bin."""

    def __init__(self) -> None:
        self._tries = np.full(BINS, BIN_WEIGHT)
        self._right = BIN_WEIGHT * (np.arange(BINS) + 0.5) / BINS

    def add(self, chance: float, *, right: bool) -> None:
        """A guess was right or not."""
        place = min(BINS - 1, int(chance * BINS))
        self._tries[place] += 1
        self._right[place] += right

    def curve(self) -> ReliabilityCurve:
        """What was counted, made to never fall: isotonic regression, by pooling neighbours that do."""
        blocks: list[tuple[float, float, int]] = []  # right ones, tries, bins
        for right, tries in zip(self._right.tolist(), self._tries.tolist(), strict=True):
            block = (right, tries, 1)
            while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
                before = blocks.pop()
                block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
            blocks.append(block)
        return ReliabilityCurve([right / tries for right, tries, bins in blocks for _ in range(bins)])
