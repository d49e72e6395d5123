"""Tables of n-grams: what a target says after its last one to three tokens, counted on text that it wrote.

Chances are those of interpolated absolute discounting (Ney, Essen and Kneser 1994, "On structuring probabilistic
dependences in stochastic language modelling"), corrected by how often such guesses were right on answers held back.
Pure but for the progress; the same rows give the same table.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from moa_shared.drafting.estimates import ReliabilityCounts, worth_of
from moa_shared.drafting.guesses import CHANCE_STEPS, LONGEST_CONTEXT, NO_TOKEN
from moa_shared.errors import DataError

from moa_training.data.shards import TokenRow
from moa_training.settings import NgramOptions

Context = tuple[int, ...]
MOST_TOKENS = 4  # of a context
HELD_BACK = 8  # one row of so many corrects the chances
DISCOUNT = 0.8  # off each count, for what was never seen


class NgramCounts:
    """How often each token followed each context in the answers of some rows."""

    def __init__(self, rows: Iterable[TokenRow], options: NgramOptions) -> None:
        self._options = options
        self._after: dict[Context, Counter[int]] = {}
        for context, token in _places(rows):
            for size in range(min(len(context), LONGEST_CONTEXT) + 1):
                self._after.setdefault(context[len(context) - size :], Counter())[token] += 1
        self._totals = {context: counts.total() for context, counts in self._after.items()}

    @property
    def contexts(self) -> list[Context]:
        """Those that occurred often enough, in ascending order."""
        least = self._options.least_count
        return sorted(context for context, total in self._totals.items() if context and total >= least)

    def known(self, context: Context) -> Context:
        """The longest end of a context that occurred often enough; () for none."""
        while context and self._totals.get(context, 0) < self._options.least_count:
            context = context[1:]
        return context

    def chance(self, context: Context, token: int) -> float:
        """Of a token after a context, with those of its shorter ends mixed in."""
        counts = self._after.get(context)
        if counts is None:
            return self.chance(context[1:], token) if context else 0.0
        total = self._totals[context]
        if not context:
            return counts[token] / total
        rest = DISCOUNT * len(counts) / total
        return max(counts[token] - DISCOUNT, 0.0) / total + rest * self.chance(context[1:], token)

    def best(self, context: Context) -> list[tuple[float, int]]:
        """The likeliest tokens after a context, best first, with their chances."""
        candidates: set[int] = set()
        for first in range(len(context)):
            counts = self._after.get(context[first:], Counter())
            # The lower token first among equals, so that the order of rows does not matter.
            common = sorted(counts, key=lambda token: (-counts[token], token))
            candidates.update(common[: 2 * MOST_TOKENS])
        ranked = sorted(
            ((self.chance(context, token), token) for token in candidates), key=lambda each: (-each[0], each[1])
        )
        return ranked[:MOST_TOKENS]


def build_ngrams(rows: Sequence[TokenRow], options: NgramOptions) -> dict[str, npt.NDArray[Any]]:
    """The arguments of an `NgramTable` of some text."""
    shares = _correction(rows, options)
    counts = NgramCounts(rows, options)
    contexts: list[Context] = []
    kept: list[list[tuple[float, int]]] = []
    for context in counts.contexts:
        corrected = [(worth_of(chance, shares), token) for chance, token in counts.best(context)]
        likely = [(chance, token) for chance, token in corrected if chance >= options.least_chance]
        if likely:
            contexts.append(context)
            kept.append(likely)
    if not contexts:
        raise DataError(
            f"No context occurs {options.least_count} times in this text.",
            hint="Give more text, or lower --least-count.",
        )
    filled = [(NO_TOKEN,) * (LONGEST_CONTEXT - len(context)) + context for context in contexts]
    chances = [max(1, round(chance * CHANCE_STEPS)) for likely in kept for chance, _ in likely]
    return {
        "contexts": np.array(filled, np.int32),
        "counts": np.array([len(likely) for likely in kept], np.uint8),
        "tokens": np.array([token for likely in kept for _, token in likely], np.int32),
        "chances": np.array(chances, np.uint8),
    }


def _correction(rows: Sequence[TokenRow], options: NgramOptions) -> list[float]:
    """What the chances are worth, by rows held back."""
    counted = NgramCounts((row for number, row in enumerate(rows) if number % HELD_BACK), options)
    reliability = ReliabilityCounts()
    guesses: dict[Context, list[tuple[float, int]]] = {}
    for context, token in _places(rows[::HELD_BACK]):
        known = counted.known(context)
        if known not in guesses:
            guesses[known] = counted.best(known)
        for chance, guess in guesses[known]:
            reliability.add(chance, right=guess == token)
    return reliability.shares()


def _places(rows: Iterable[TokenRow]) -> Iterator[tuple[Context, int]]:
    """Each token of the answers, with what stands before it, as far as a context goes."""
    for row in rows:
        for start, stop in row.answers:
            for place in range(start, stop):
                yield tuple(row.ids[max(0, place - LONGEST_CONTEXT) : place]), row.ids[place]
