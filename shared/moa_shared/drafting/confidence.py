"""How sure a device may be that its standalone text is what the target would write. Pure.

The stated chance of a token is corrected by how often such tokens were right on answers that the drafter has not seen,
as long as all before them since the cut were right. So the product over a run is the chance that all of it is right.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np


class Confidence:
    """What the chances of one drafter's standalone tokens are worth."""

    def __init__(self, curves: Mapping[TokenOrigin, ReliabilityCurve]) -> None:
        if missing := set(TokenOrigin) - set(curves):
            raise ValueError(f"no curve for {', '.join(sorted(missing))}")
        self.curves = dict(curves)

    def chance(self, written: WrittenToken) -> float:
        return self.curves[written.origin].corrected(_stated(written))


MOST_EVIDENCE = 50.0  # of the past: some 1,000 tokens of a companion that is right nine times in ten
PRIOR_EVIDENCE = 1.0  # of what was not measured: some twenty tokens; with half of it a few right ones promise too much
_LEAST_DOUBT = 1e-6  # of a stated chance: nothing is certain


@dataclass(slots=True)
class LearnedConfidence:
    """What the stated chances of one companion are worth beside one target."""

    shift: float  # of their log-odds
    evidence: float  # how much is known of it (Fisher's information): a token whose chance is c brings c (1 - c)

    def chance(self, written: WrittenToken) -> float:
        return self.corrected(_stated(written))

    def corrected(self, stated: float) -> float:
        doubt = min(max(1.0 - stated, _LEAST_DOUBT), 1.0 - _LEAST_DOUBT)
        return 1.0 / (1.0 + doubt / (1.0 - doubt) * math.exp(-self.shift))

    def learn(self, stated: float, *, right: bool) -> None:
        """The target has decided a token for which a choice was stated."""
        chance = self.corrected(stated)
        self.evidence += chance * (1.0 - chance)
        self.shift += (right - chance) / self.evidence
        self.evidence = min(self.evidence, MOST_EVIDENCE)


TokenConfidence = Confidence | LearnedConfidence


def chance_of(written: WrittenToken, confidence: TokenConfidence | None) -> float:
    """The chance that a token is right if all before it are.

    `confidence`: None: it was never measured, and the stated chance is taken for it.
    """
    return _stated(written) if confidence is None else confidence.chance(written)


def _stated(written: WrittenToken) -> float:
    return math.exp(min(0.0, written.log_chance))


BINS = 20
BIN_WEIGHT = 10.0  # guesses that a bin's own chance is worth


class ReliabilityCurve:
    """What stated chances are worth. `shares`: of right guesses in each bin, ascending from the chance 0 to 1."""

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


Guess = tuple[int, float]  # a token and its log-chance


class TokenOrigin(StrEnum):
    """Who says so. What a chance is worth depends on it."""

    DRAFTER = "drafter"
    BOTH = "both"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class WrittenToken:
    """A token with its log-chance, as it is stated."""

    token: int
    log_chance: float
    origin: TokenOrigin


def likelier(own: Guess, copied: Guess | None) -> WrittenToken:
    """The likelier one of a drafter's token and a copied one.

    A token that both name is as likely as that one of them is right, if they err independently.
    """
    if copied is None or (copied[0] != own[0] and copied[1] <= own[1]):
        return WrittenToken(*own, TokenOrigin.DRAFTER)
    if copied[0] != own[0]:
        return WrittenToken(*copied, TokenOrigin.COPY)
    wrong = (1 - math.exp(min(0.0, own[1]))) * (1 - math.exp(copied[1]))
    return WrittenToken(own[0], math.log1p(-wrong), TokenOrigin.BOTH)


# Of what was never counted: two tokens a forward, as of any drafter about which nothing is known.
PRIOR_TOKENS, PRIOR_RIGHT = 20, 10
MOST_TOKENS = 2000  # then both counts are halved
GUESSES = 5  # of a chain; of measured companions it foretells 4.7 and 5.6 for 4.6 and 5.6 (docs/measurements/alone.md)


@dataclass(slots=True)
class Agreement:
    """The choices of one companion beside one target."""

    tokens: int = 0  # of the target, in whose places the companion's choice was known
    right: int = 0  # those that were its choice

    def add(self, *, right: bool) -> None:
        self.tokens += 1
        self.right += right
        if self.tokens >= MOST_TOKENS:
            self.tokens //= 2
            self.right //= 2

    @property
    def tokens_a_forward(self) -> float:
        """What a chain of guesses brings, with the target's own token."""
        share = (self.right + PRIOR_RIGHT) / (self.tokens + PRIOR_TOKENS)
        return sum(share**guesses for guesses in range(GUESSES + 1))
