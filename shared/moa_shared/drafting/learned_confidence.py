"""How sure a device may be of the text of a companion, learnt from tokens that the target has decided. Pure.

A companion's stated chances are those of text as such; how often the target makes the same choice is more or less than
that, by about the same step on the scale of log-odds whatever is stated (docs/measurements/alone.md). So one number is
learnt, by logistic regression over what comes. Invariant: a greater stated chance is never believed less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from moa_shared.drafting.written import WrittenToken

MOST_EVIDENCE = 50.0  # of the past: some 1,000 tokens of a companion that is right nine times in ten
PRIOR_EVIDENCE = 1.0  # of what was not measured: some twenty tokens; with half of it a few right ones promise too much
_LEAST_DOUBT = 1e-6  # of a stated chance: nothing is certain


@dataclass(slots=True)
class LearnedConfidence:
    """What the stated chances of one companion are worth beside one target.

    Args:
        shift: of their log-odds.
        evidence: how much is known of it (Fisher's information): a token whose chance is c brings c (1 - c).
    """

    shift: float
    evidence: float

    def chance(self, written: WrittenToken) -> float:
        """The chance that a token is right if all before it are."""
        return self.corrected(math.exp(min(0.0, written.log_chance)))

    def corrected(self, stated: float) -> float:
        """What a stated chance is worth."""
        doubt = min(max(1.0 - stated, _LEAST_DOUBT), 1.0 - _LEAST_DOUBT)
        return 1.0 / (1.0 + doubt / (1.0 - doubt) * math.exp(-self.shift))

    def learn(self, stated: float, *, right: bool) -> None:
        """The target has decided a token for which a choice was stated."""
        chance = self.corrected(stated)
        self.evidence += chance * (1.0 - chance)
        self.shift += (right - chance) / self.evidence
        self.evidence = min(self.evidence, MOST_EVIDENCE)
