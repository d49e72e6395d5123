"""Guesses that take no drafter, with their chances: what the conversation repeats, and what the target usually says.

Prompt look-up is what followed the last time that the newest tokens occurred in the conversation
(https://github.com/apoorvumang/prompt-lookup-decoding). State: the conversation's text, and how often the token after a
run of each length was what followed that run before. Pure.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

# Share of right guesses after runs of 1, 2, ... tokens in the default target's greedy answers (3,055 tokens to 28
# questions of seven kinds); the conversation's own count soon outweighs them.
_PRIOR = (0.23, 0.53, 0.63, 0.70, 0.76, 0.85)
_PRIOR_WEIGHT = 16.0
# A node costs the server 1 ms of 49 and some bytes, and saves a plain step if it survives.
LEAST_SURVIVAL = 0.02
LEAST_LOG_SURVIVAL = math.log(LEAST_SURVIVAL)
LOOKUP_LONGEST = 3  # tokens that must agree, tried from the longest, in look-up's first description
SHORTEST = 2  # a single token that occurred before says too little
SHORTEST_STANDALONE = 4  # in standalone text, where a wrong token spoils all that follows and not one node (ADR 27)


def chance_of_copy(size: int) -> float:
    """The chance that the token after a run of `size` tokens is what followed it before, in any conversation."""
    return _PRIOR[min(size, len(_PRIOR)) - 1]


LONGEST_CONTEXT = 3  # tokens
NO_TOKEN = -1  # fills the front of shorter contexts
CHANCE_STEPS = 255  # a chance is kept as so many parts of one
_TOKEN_BITS = 21  # of a token id in the number that stands for a context: a third of what tuples of them take


class NgramTable:
    """Tokens that often follow a context, with their chances; ValueError: arrays that do not fit together.

    Args:
        contexts: [contexts, LONGEST_CONTEXT] token ids, the newest last, after as many NO_TOKEN as are missing.
        counts: [contexts] uint8, how many tokens follow each.
        tokens, chances: [sum of counts] int32 and uint8 (in parts of CHANCE_STEPS), likeliest first in each context.
    """

    def __init__(
        self,
        contexts: npt.NDArray[np.int32],
        counts: npt.NDArray[np.uint8],
        tokens: npt.NDArray[np.int32],
        chances: npt.NDArray[np.uint8],
    ) -> None:
        if contexts.shape != (len(counts), LONGEST_CONTEXT) or not len(tokens) == len(chances) == int(counts.sum()):
            there = f"{len(tokens)} tokens and {len(chances)} chances for counts of {int(counts.sum())}"
            raise ValueError(f"{there}, contexts of shape {list(contexts.shape)}")
        is_possible = not len(tokens) or (chances.min() and tokens.min() >= 0 and contexts.min() >= NO_TOKEN)
        if not is_possible or int(contexts.max(initial=0)) + 1 >= 1 << _TOKEN_BITS:
            raise ValueError(f"token ids below 0 or of more than {_TOKEN_BITS} bits, or chances of 0")
        self._tokens = tokens
        self._log_chances = np.log(chances / np.float64(CHANCE_STEPS))
        self._stops = np.cumsum(counts, dtype=np.int64)
        numbers = np.zeros(len(contexts), np.int64)
        for column in contexts.T:
            numbers = (numbers << _TOKEN_BITS) + column + 1
        self._index: dict[int, int] = dict(zip(numbers.tolist(), range(len(contexts)), strict=True))

    def __len__(self) -> int:
        return len(self._index)

    def after(self, newest: Sequence[int]) -> list[tuple[int, float]]:
        """Tokens that may follow, likeliest first, with their log-chances; none where the table knows nothing."""
        context = newest[-LONGEST_CONTEXT:]
        for first in range(len(context)):
            number = 0
            for token in context[first:]:
                number = (number << _TOKEN_BITS) + token + 1
            index = self._index.get(number)
            if index is not None:
                start, stop = int(self._stops[index - 1]) if index else 0, int(self._stops[index])
                tokens, log_chances = self._tokens[start:stop], self._log_chances[start:stop]
                return list(zip(tokens.tolist(), log_chances.tolist(), strict=True))
        return []


# Places that are looked at in one go: guesses that disagree at each token would otherwise double with each.
MOST_PLACES = 64


class TextGuesser:
    """Guesses for one conversation, in whose text runs of up to `longest` tokens are found at once.

    What it has learned of copies stays where it restarts.
    """

    def __init__(self, ngrams: NgramTable | None = None, longest: int = len(_PRIOR)) -> None:
        self.tokens: list[int] = []
        self._ngrams, self._longest = ngrams, longest
        self._after: dict[tuple[int, ...], int] = {}
        self._right = [share * _PRIOR_WEIGHT for share in _PRIOR]
        self._tries = [_PRIOR_WEIGHT] * len(_PRIOR)

    def restart(self, tokens: Sequence[int]) -> None:
        self.tokens = []
        self._after = {}
        for token in tokens:
            self._append(token)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens; each shows whether copying would have been right."""
        for token in tokens:
            position, size = self.matched()
            if size:
                self._tries[size - 1] += 1
                self._right[size - 1] += self.tokens[position] == token
            self._append(token)

    def _append(self, token: int) -> None:
        position = len(self.tokens)
        for size in range(1, min(self._longest, position) + 1):
            self._after[tuple(self.tokens[position - size :])] = position
        self.tokens.append(token)

    def matched(self, ahead: Sequence[int] = (), shortest: int = 1) -> tuple[int, int]:
        """Position after the newest occurrence of the longest run that ends the text and `ahead`, and its length.

        `ahead`: a draft after the text, which alone is searched. `shortest`: the shortest run that counts; without one,
        both numbers are 0.
        """
        newest = [*self.tokens[-self._longest :], *ahead][-self._longest :]
        for size in range(len(newest), shortest - 1, -1):
            position = self._after.get(tuple(newest[-size:]))
            if position is not None:
                return position, size
        return 0, 0

    def continuation(self, length: int, ahead: Sequence[int] = (), shortest: int = 1) -> list[int]:
        """Up to `length` tokens that followed the longest such run; empty if there is none."""
        position, size = self.matched(ahead, shortest)
        return self.tokens[position : position + length] if size else []

    def log_chance(self, size: int) -> float:
        """The log-chance that the token after a run of `size` tokens is what followed it before."""
        return math.log(self._right[size - 1] / self._tries[size - 1])

    def copied(self, ahead: Sequence[int] = (), shortest: int = SHORTEST) -> tuple[int, float] | None:
        """The token to copy after the text and `ahead`, and its log-chance; None: no such run occurred before."""
        position, size = self.matched(ahead, shortest)
        return (self.tokens[position], self.log_chance(size)) if size else None

    def guesses(self, ahead: Sequence[int] = ()) -> list[tuple[int, float]]:
        """Tokens that may follow the text and `ahead`, likeliest first, with their log-chances; each token once."""
        copied = self.copied(ahead)
        if self._ngrams is None:
            return [copied] if copied is not None else []
        usual = self._ngrams.after([*self.tokens[-LONGEST_CONTEXT:], *ahead])
        if copied is None:
            return usual
        token, log_chance = copied
        both = [(token, max([log_chance, *(chance for other, chance in usual if other == token)]))]
        both += [guess for guess in usual if guess[0] != token]
        return sorted(both, key=lambda guess: -guess[1])
