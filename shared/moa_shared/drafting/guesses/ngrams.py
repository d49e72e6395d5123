"""What a target usually says after its last one to three tokens.

A table made once from text that the target wrote (`moa-train ngrams`), with the chance of each token as it was counted
on text held back. Immutable; the longest context that the table holds decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LONGEST_CONTEXT = 3  # tokens
NO_TOKEN = -1  # fills the front of shorter contexts
CHANCE_STEPS = 255  # a chance is kept as so many parts of one
_TOKEN_BITS = 21  # of a token id in the number that stands for a context: a third of what tuples of them take

Contexts = npt.NDArray[np.int32]


class NgramTable:
    """Tokens that often follow a context, with their chances.

    Args:
        contexts: [contexts, LONGEST_CONTEXT] token ids, the newest last, after as many NO_TOKEN as are missing.
        counts: [contexts] uint8, how many tokens follow each.
        tokens: [sum of counts] int32, context by context, likeliest first.
        chances: [sum of counts] uint8, in parts of CHANCE_STEPS, at least 1.

    Raises:
        ValueError: arrays that are no such table.
    """

    def __init__(
        self,
        contexts: Contexts,
        counts: npt.NDArray[np.uint8],
        tokens: npt.NDArray[np.int32],
        chances: npt.NDArray[np.uint8],
    ) -> None:
        stops = np.cumsum(counts, dtype=np.int64)
        if contexts.shape != (len(counts), LONGEST_CONTEXT):
            raise ValueError(f"contexts of shape {list(contexts.shape)} for {len(counts)} counts")
        if not len(tokens) == len(chances) == int(counts.sum()):
            raise ValueError(f"{len(tokens)} tokens and {len(chances)} chances for counts of {int(counts.sum())}")
        if len(tokens) and (not chances.min() or tokens.min() < 0 or contexts.min() < NO_TOKEN):
            raise ValueError("tokens below 0, or chances of 0")
        if len(tokens) and int(contexts.max()) + 1 >= 1 << _TOKEN_BITS:
            raise ValueError(f"token ids of more than {_TOKEN_BITS} bits")
        self._tokens = tokens
        self._log_chances = np.log(chances / np.float64(CHANCE_STEPS))
        self._stops = stops
        numbers = np.zeros(len(contexts), np.int64)
        for column in contexts.T:
            numbers = (numbers << _TOKEN_BITS) + column + 1
        self._index: dict[int, int] = dict(zip(numbers.tolist(), range(len(contexts)), strict=True))

    def __len__(self) -> int:
        return len(self._index)

    def after(self, newest: Sequence[int]) -> list[tuple[int, float]]:
        """Tokens that may follow, likeliest first, with their log-chances; none where the table knows nothing.

        Args:
            newest: the newest tokens of the text; the last LONGEST_CONTEXT of them count.
        """
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
