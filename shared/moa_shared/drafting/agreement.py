"""How often a companion's own choice is the target's, and what its drafts bring by that. Pure.

Counted where the target decides, while the companion drafts and while it only reads along. What is long past counts for
less: another kind of text may agree otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

# Of what was never counted: two tokens a forward, as of any drafter about which nothing is known.
PRIOR_TOKENS, PRIOR_RIGHT = 20, 10
MOST_TOKENS = 2000  # then both counts are halved
GUESSES = 5  # of a chain; of measured companions it foretells 4.7 and 5.6 for 4.6 and 5.6 (docs/measurements/alone.md)


@dataclass(slots=True)
class Agreement:
    """The choices of one companion beside one target.

    Args:
        tokens: of the target, in whose places the companion's choice was known; `right`: those that were its choice.
    """

    tokens: int = 0
    right: int = 0

    def add(self, *, right: bool) -> None:
        """The target has decided a token for which a choice was known."""
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
