"""Whether a drafter guesses better than the text itself: what it says at each place, beside look-up. Pure.

A drafter of another model may have fitting sizes; then it is (nearly) never right, and each of its steps is time lost.
State: how often drafter and look-up were right at the places where the drafter was asked, until it is decided.
Invariant: a decision stands, so that nothing flaps. See docs/adr/0055-drafters-on-trial.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

TRIAL_TOKENS = 200  # that the target has chosen where the drafter had been asked
# The share of right guesses at which a drafter is of this model, however well look-up does: text that copies an earlier
# one must not cost a good drafter its place. Of its first 200 the shipped one was right in 0.36 where look-up was in
# 0.27, and one of random weights in 0.005 (tests/e2e/test_drafter_trial.py).
RIGHT_SHARE = 0.2
NOISE = 2.0  # standard deviations by which look-up must be ahead, of the places where only one of both was right


class TrialResult(Enum):
    """What a trial has shown."""

    OPEN = "open"
    KEPT = "kept"
    DROPPED = "dropped"


class DrafterTrial:
    """The first guesses of one drafter, in all conversations.

    Args:
        on_decided: called once, on the thread of `add`; None: whoever is interested looks.

    Attributes:
        tokens: chosen by the target where the drafter had been asked; `right`: those that were its first choice;
            `looked_up`: those that look-up would have guessed.
    """

    def __init__(self, on_decided: Callable[[DrafterTrial], None] | None = None) -> None:
        self.result = TrialResult.OPEN
        self.tokens = self.right = self.looked_up = 0
        self._on_decided = on_decided
        self._only_right = self._only_looked_up = 0

    @property
    def is_open(self) -> bool:
        """Whether it is still to be decided."""
        return self.result is TrialResult.OPEN

    @property
    def is_dropped(self) -> bool:
        """Whether the drafter is not worth its steps."""
        return self.result is TrialResult.DROPPED

    @property
    def lacks_tokens(self) -> bool:
        """Whether too few guesses are known to decide by."""
        return self.tokens < TRIAL_TOKENS

    def add(self, token: int, choice: int, copy: int | None) -> None:
        """The target has chosen a token.

        Args:
            choice: of the drafter, in the same place.
            copy: what look-up would have guessed there; None: nothing.
        """
        if not self.is_open:
            return
        is_right, is_copy = choice == token, copy == token
        self.tokens += 1
        self.right += is_right
        self.looked_up += is_copy
        self._only_right += is_right and not is_copy
        self._only_looked_up += is_copy and not is_right
        if not self.lacks_tokens:
            self._decide()

    def _decide(self) -> None:
        lead, differing = self._only_looked_up - self._only_right, self._only_looked_up + self._only_right
        if self.right >= RIGHT_SHARE * self.tokens:
            self.result = TrialResult.KEPT
        elif lead > NOISE * math.sqrt(differing):
            self.result = TrialResult.DROPPED
        if not self.is_open and self._on_decided is not None:
            self._on_decided(self)

    @property
    def figures(self) -> str:
        """What was counted, for a person."""
        return f"right in {self.right} of {self.tokens} tokens, what the text repeats in {self.looked_up}"
