"""Guesses copied from the conversation, with the chance that each is right.

Pure. State: the text, and how often the token after a run of each length was what followed that run before. These
guesses and a drafter's candidates are ranked together by their chances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from moa_shared.drafting.guesses.lookup import TextIndex

# Share of right guesses after runs of 1, 2, ... tokens in the default target's greedy answers (3,055 tokens to 28
# questions of seven kinds); the conversation's own count soon outweighs them.
_PRIOR = (0.23, 0.53, 0.63, 0.70, 0.76, 0.85)
_PRIOR_WEIGHT = 16.0
# A node costs the server 1 ms of 49 and some bytes, and saves a plain step if it survives.
LEAST_SURVIVAL = 0.02
LEAST_LOG_SURVIVAL = math.log(LEAST_SURVIVAL)
SHORTEST = 2  # a single token that occurred before says too little
SHORTEST_STANDALONE = 4  # in standalone text, where a wrong token spoils all that follows and not one node (ADR 27)


def chance_of_copy(size: int) -> float:
    """The chance that the token after a run of `size` tokens is what followed it before, in any conversation."""
    return _PRIOR[min(size, len(_PRIOR)) - 1]


class CopyGuesser:
    """Guesses what one conversation repeats."""

    def __init__(self) -> None:
        self._text = TextIndex(len(_PRIOR))
        self._right = [share * _PRIOR_WEIGHT for share in _PRIOR]
        self._tries = [_PRIOR_WEIGHT] * len(_PRIOR)

    def restart(self, tokens: Sequence[int]) -> None:
        """Replaces the conversation with these tokens; what was learned stays."""
        self._text.restart(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens; each shows whether copying would have been right."""
        text = self._text
        for token in tokens:
            position, size = text.matched()
            if size:
                self._tries[size - 1] += 1
                self._right[size - 1] += text.tokens[position] == token
            text.extend([token])

    def newest(self, count: int) -> Sequence[int]:
        """The text's newest tokens, as many as there are."""
        return self._text.tokens[-count:]

    def log_chance(self, size: int) -> float:
        """The log-chance that the token after a run of `size` tokens is what followed it before."""
        return math.log(self._right[size - 1] / self._tries[size - 1])

    def guess(self, ahead: Sequence[int] = (), shortest: int = SHORTEST) -> tuple[int, float] | None:
        """The token to copy after the text and `ahead`, and its log-chance; None: nothing to copy.

        Args:
            shortest: run of tokens that must have occurred before.
        """
        position, size = self._text.matched(ahead, shortest)
        return (self._text.tokens[position], self.log_chance(size)) if size else None
