"""Running estimates of what both ends measure: smoothed times, and how often a guess is right.

Pure. Old samples fade, since links, machines and texts change while an answer runs. Invariant: an estimate is always
usable: before the first sample it is its prior, and it never leaves the range of what it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from moa_shared.tree import ROOT, DraftTree


class Smoothed:
    """An exponentially weighted mean and mean deviation, as of a round-trip time (RFC 6298, section 2).

    `first`: until there is a sample. `weight`: of a new one; 1/8 follows a change within about ten samples.
    """

    def __init__(self, first: float = 0.0, weight: float = 1 / 8) -> None:
        self.mean = first
        self.deviation = first / 2
        self.samples = 0
        self._weight = weight

    def add(self, sample: float) -> None:
        """Adds a sample; the first one replaces the prior, as in the RFC."""
        self.samples += 1
        if self.samples == 1:
            self.mean, self.deviation = sample, sample / 2
            return
        weight = max(self._weight, 1 / self.samples)  # a plain mean to begin with
        self.deviation += weight * (abs(sample - self.mean) - self.deviation)
        self.mean += weight * (sample - self.mean)

    @property
    def high(self) -> float:
        """A bound that samples seldom exceed: mean plus four deviations, as the RFC's time-out."""
        return self.mean + 4 * self.deviation


class AcceptanceEstimate:
    """How often the target chooses the drafter's token, given that it chose all before it.

    A Beta prior, worth `prior_trials` samples (with 2, four misses bring one half down to one sixth), and samples that
    fade by `decay` with each new one (0.98 remembers about 50, a paragraph of text).
    """

    def __init__(self, prior: float = 0.5, prior_trials: float = 2.0, decay: float = 0.98) -> None:
        self._prior = prior
        self._prior_trials = prior_trials
        self._decay = decay
        self._hits = 0.0
        self._trials = 0.0

    def add(self, hit: bool) -> None:
        self.fade()
        self._hits += hit
        self._trials += 1.0

    def fade(self) -> None:
        """Records a chance to sample that passed unused: the estimate moves back towards its prior."""
        self._hits *= self._decay
        self._trials *= self._decay

    @property
    def mean(self) -> float:
        return (self._prior * self._prior_trials + self._hits) / (self._prior_trials + self._trials)

    @property
    def high(self) -> float:
        """A bound that the truth exceeds one time in six: the Beta distribution's mean plus one standard deviation."""
        mean = self.mean
        return min(1.0, mean + math.sqrt(mean * (1 - mean) / (self._prior_trials + self._trials + 1)))


class TreeAcceptance:
    """How often drafts are right, from the trees that were drafted and the tokens that the target chose.

    `level`: whether any node of a level is right, given that the level above was; by rank among siblings: whether the
    first is, the second, ...
    """

    def __init__(self) -> None:
        self.level = AcceptanceEstimate()
        self._ranks: list[AcceptanceEstimate] = []

    def learn(self, tree: DraftTree, tokens: Sequence[int]) -> None:
        """Records that the target chose these tokens where this tree was drafted."""
        node = ROOT
        for token in tokens:
            children = tree.children.get(node)
            if children is None:
                self.level.fade()
                return
            right = tree.child_with(node, token)
            self.level.add(right is not None)
            for rank, child in enumerate(children):
                self._rank(rank).add(child == right)
            if right is None:
                return
            node = right

    def of_rank(self, rank: int) -> float:
        """How often the sibling of this rank (0: the first) is right."""
        return self._rank(rank).mean

    def survival(self, tree: DraftTree) -> list[float]:
        """The probability that the target's text goes through each node."""
        survival: list[float] = []
        ranks: dict[int, int] = {}
        for parent in tree.parents:
            rank = ranks[parent] = ranks.get(parent, -1) + 1
            survival.append((1.0 if parent == ROOT else survival[parent]) * self.of_rank(rank))
        return survival

    def _rank(self, rank: int) -> AcceptanceEstimate:
        while rank >= len(self._ranks):  # half of what the siblings before leave, as long as nothing is known
            self._ranks.append(AcceptanceEstimate(0.5 ** (len(self._ranks) + 1)))
        return self._ranks[rank]


TRIAL_TOKENS = 200  # that the target has chosen where the drafter had been asked
# The share of right guesses at which a drafter is of this model, however well look-up does: text that copies an earlier
# one must not cost a good drafter its place. Of its first 200 the shipped one was right in 0.36 where look-up was in
# 0.27, and one of random weights in 0.005 (tests/e2e/test_drafter_trial.py).
RIGHT_SHARE = 0.2
NOISE = 2.0  # standard deviations by which look-up must be ahead, of the places where only one of both was right


class DrafterTrial:
    """The first guesses of one drafter, in all conversations. `on_decided`: called once, on the thread of `add`."""

    def __init__(self, on_decided: Callable[[DrafterTrial], None] | None = None) -> None:
        self.is_dropped: bool | None = None  # whether it is not worth its steps; None: that is open
        self.tokens = self.right = self.looked_up = (
            0  # of the target; its first choices; what look-up would have guessed
        )
        self._on_decided = on_decided
        self._only_right = self._only_looked_up = 0

    @property
    def is_open(self) -> bool:
        return self.is_dropped is None

    @property
    def lacks_tokens(self) -> bool:
        return self.tokens < TRIAL_TOKENS

    def add(self, token: int, choice: int, copy: int | None) -> None:
        """The target has chosen a token where the drafter had a `choice`, and look-up a `copy` or nothing (None)."""
        if not self.is_open:
            return
        is_right, is_copy = choice == token, copy == token
        self.tokens += 1
        self.right += is_right
        self.looked_up += is_copy
        self._only_right += is_right and not is_copy
        self._only_looked_up += is_copy and not is_right
        if self.lacks_tokens:
            return
        lead, differing = self._only_looked_up - self._only_right, self._only_looked_up + self._only_right
        if self.right >= RIGHT_SHARE * self.tokens:
            self.is_dropped = False
        elif lead > NOISE * math.sqrt(differing):
            self.is_dropped = True
        if not self.is_open and self._on_decided is not None:
            self._on_decided(self)

    @property
    def figures(self) -> str:
        return f"right in {self.right} of {self.tokens} tokens, what the text repeats in {self.looked_up}"
