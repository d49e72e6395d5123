"""Guesses after a conversation's text: what it repeats, and what the target usually says there.

State: the conversation's text. Both kinds are ranked with a drafter's candidates by their chances.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.drafting.guesses.copying import CopyGuesser
from moa_shared.drafting.guesses.ngrams import LONGEST_CONTEXT, NgramTable

# Places that are looked at in one go: guesses that disagree at each token would otherwise double with each.
MOST_PLACES = 64


class TextGuesser:
    """Guesses for one conversation.

    Args:
        ngrams: of the target; None: there is no table for it.
    """

    def __init__(self, ngrams: NgramTable | None = None) -> None:
        self._copies = CopyGuesser()
        self._ngrams = ngrams

    def restart(self, tokens: Sequence[int]) -> None:
        """Replaces the conversation with these tokens; what was learned of copies stays."""
        self._copies.restart(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens."""
        self._copies.extend(tokens)

    def copied(self, ahead: Sequence[int], shortest: int) -> tuple[int, float] | None:
        """The token to copy after the text and `ahead`, if a run of `shortest` tokens occurred before, and its
        log-chance.
        """
        return self._copies.guess(ahead, shortest)

    def looked_up(self, ahead: Sequence[int] = ()) -> int | None:
        """The token that look-up alone would guess after the text and `ahead`; None: nothing is repeated."""
        copied = self._copies.guess(ahead, 1)
        return copied[0] if copied is not None else None

    def guesses(self, ahead: Sequence[int] = ()) -> list[tuple[int, float]]:
        """Tokens that may follow the text and `ahead`, likeliest first, with their log-chances; each token once."""
        copied = self._copies.guess(ahead)
        if self._ngrams is None:
            return [copied] if copied is not None else []
        usual = self._ngrams.after([*self._copies.newest(LONGEST_CONTEXT), *ahead])
        if copied is None:
            return usual
        token, log_chance = copied
        both = [(token, max([log_chance, *(chance for other, chance in usual if other == token)]))]
        both += [guess for guess in usual if guess[0] != token]
        return sorted(both, key=lambda guess: -guess[1])
