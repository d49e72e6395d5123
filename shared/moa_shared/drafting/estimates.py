"""Running estimates of what both ends measure: smoothed times, and how often a guess is right.

Pure. Old samples fade, since links, machines and texts change while an answer runs. Invariant: an estimate is always
usable: before the first sample it is its prior, and it never leaves the range of what it has seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from moa_shared.tree import ROOT, DraftTree


class Smoothed:
    """An exponentially weighted mean and mean deviation, as of a round-trip time (RFC 6298, section 2).

    `first`: until there is a sample. `weight`: of a new one; 1/8 follows a change within about ten samples.
    """

    def __init__(self, first: float = 0.0, weight: float = 1 / 8) -> None:
        self.mean, self.deviation, self.samples = first, first / 2, 0
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
    fade by `decay` with each new one (0.98 remembers about 50). `most`: above 1 where a trial is several tokens.
    """

    def __init__(self, prior: float = 0.5, prior_trials: float = 2.0, decay: float = 0.98, most: float = 1.0) -> None:
        self._prior, self._prior_trials, self._decay, self._most = prior, prior_trials, decay, most
        self._hits = self._trials = 0.0

    def add(self, hits: float, trials: float = 1.0) -> None:
        self.fade()
        self._hits += hits
        self._trials += trials

    def fade(self) -> None:
        self._hits *= self._decay
        self._trials *= self._decay

    @property
    def mean(self) -> float:
        return min(self._most, (self._prior * self._prior_trials + self._hits) / (self._prior_trials + self._trials))

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
                self.of_rank(rank).add(child == right)
            if right is None:
                return
            node = right

    def survival(self, tree: DraftTree) -> list[float]:
        survival: list[float] = []
        ranks: dict[int, int] = {}
        for parent in tree.parents:
            rank = ranks[parent] = ranks.get(parent, -1) + 1
            survival.append((1.0 if parent == ROOT else survival[parent]) * self.of_rank(rank).mean)
        return survival

    def of_rank(self, rank: int) -> AcceptanceEstimate:
        """How often the sibling of this rank (0: the first) is right."""
        while rank >= len(self._ranks):  # half of what the siblings before leave, as long as nothing is known
            self._ranks.append(AcceptanceEstimate(0.5 ** (len(self._ranks) + 1)))
        return self._ranks[rank]


TRIAL_TOKENS = 200  # that the target has chosen where the drafter had been asked
# The share of right guesses at which a drafter is of this model, however well look-up does. Of its first 200 the
# shipped one was right in 0.36, look-up in 0.27, and one of random weights in 0.005 (tests/e2e/test_drafter_trial.py).
RIGHT_SHARE = 0.2


class DrafterTrial:
    """The first guesses of one drafter, in all conversations. `on_decided`: called once, on the thread of `add`."""

    def __init__(self, on_decided: Callable[[DrafterTrial], None] | None = None) -> None:
        self.is_dropped: bool | None = None  # whether it is not worth its steps; None: that is open
        self.tokens = self.right = 0  # of the target; its first choices
        self.looked_up = 0  # what look-up would have guessed
        self._on_decided = on_decided
        self._differing = 0  # where only one of both was right

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
        self._differing += is_right != is_copy
        if self.lacks_tokens:
            return
        if self.right >= RIGHT_SHARE * self.tokens:
            self.is_dropped = False
        elif self.looked_up - self.right > 2.0 * math.sqrt(self._differing):  # standard deviations
            self.is_dropped = True
        if not self.is_open and self._on_decided is not None:
            self._on_decided(self)

    @property
    def figures(self) -> str:
        return f"right in {self.right} of {self.tokens} tokens, what the text repeats in {self.looked_up}"


Shares = Sequence[float]  # of right guesses, in as many bins of stated chances from 0 to 1; never falling


def worth_of(chance: float, shares: Shares) -> float:
    """What a stated chance is worth where so many of such guesses were right."""
    return float(np.interp(chance, (np.arange(len(shares)) + 0.5) / len(shares), shares))


class Confidence:
    """What the chances of one drafter's standalone tokens are worth, by who says so."""

    def __init__(self, shares: Mapping[TokenOrigin, Shares]) -> None:
        for origin in TokenOrigin:
            given = shares.get(origin, ())
            if not given or list(given) != sorted(given) or given[0] < 0 or given[-1] > 1:
                raise ValueError(f"no shares for {origin}, or some that fall or are not between 0 and 1")
        self.shares = dict(shares)

    def chance(self, written: WrittenToken) -> float:
        return worth_of(written.stated, self.shares[written.origin])


MOST_EVIDENCE = 50.0  # of the past: some 1,000 tokens of a companion that is right nine times in ten
PRIOR_EVIDENCE = 1.0  # of what was not measured: some twenty tokens; with half of it a few right ones promise too much


@dataclass(slots=True)
class LearnedConfidence:
    """What the stated chances of one companion are worth beside one target."""

    shift: float  # of their log-odds
    evidence: float  # how much is known of it (Fisher's information): a token whose chance is c brings c (1 - c)

    def chance(self, written: WrittenToken) -> float:
        return self.corrected(written.stated)

    def corrected(self, stated: float) -> float:
        doubt = min(max(1.0 - stated, 1e-6), 1.0 - 1e-6)  # nothing is certain
        return 1.0 / (1.0 + doubt / (1.0 - doubt) * math.exp(-self.shift))

    def learn(self, stated: float, *, right: bool) -> None:
        """The target has decided a token for which a choice was stated."""
        chance = self.corrected(stated)
        self.evidence += chance * (1.0 - chance)
        self.shift += (right - chance) / self.evidence
        self.evidence = min(self.evidence, MOST_EVIDENCE)


TokenConfidence = Confidence | LearnedConfidence


def chance_of(written: WrittenToken, confidence: TokenConfidence | None) -> float:
    """The chance that a token is right if all before it are; `confidence`: None: it was never measured."""
    return written.stated if confidence is None else confidence.chance(written)


BINS, BIN_WEIGHT = 20, 10.0  # guesses that a bin's own chance is worth


class ReliabilityCounts:
    """Counts guesses by their stated chance. State: tries and right ones of each bin."""

    def __init__(self) -> None:
        self._tries = np.full(BINS, BIN_WEIGHT)
        self._right = BIN_WEIGHT * (np.arange(BINS) + 0.5) / BINS

    def add(self, chance: float, *, right: bool) -> None:
        place = min(BINS - 1, int(chance * BINS))
        self._tries[place] += 1
        self._right[place] += right

    def shares(self) -> list[float]:
        """What was counted, made to never fall: isotonic regression, by pooling neighbours that do."""
        blocks: list[tuple[float, float, int]] = []  # right ones, tries, bins
        for right, tries in zip(self._right.tolist(), self._tries.tolist(), strict=True):
            block = (right, tries, 1)
            while blocks and blocks[-1][0] * block[1] >= block[0] * blocks[-1][1]:
                before = blocks.pop()
                block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
            blocks.append(block)
        return [right / tries for right, tries, bins in blocks for _ in range(bins)]


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

    @property
    def stated(self) -> float:
        return math.exp(min(0.0, self.log_chance))


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


MOST_TOKENS = 2000  # then both counts are halved
GUESSES = 5  # of a chain; of measured companions it foretells 4.7 and 5.6 for 4.6 and 5.6 (docs/measurements/alone.md)


@dataclass(slots=True)
class Agreement:
    """The choices of one companion beside one target."""

    tokens: int = 0  # of the target, in whose places the companion's choice was known
    right: int = 0  # those that were its choice

    def add(self, *, right: bool) -> None:
        self.tokens, self.right = self.tokens + 1, self.right + right
        if self.tokens >= MOST_TOKENS:
            self.tokens, self.right = self.tokens // 2, self.right // 2

    @property
    def tokens_a_forward(self) -> float:
        """What a chain of guesses brings, with the target's own token."""
        share = (self.right + 10) / (self.tokens + 20)  # of what was never counted, two tokens a forward
        return sum(share**guesses for guesses in range(GUESSES + 1))
