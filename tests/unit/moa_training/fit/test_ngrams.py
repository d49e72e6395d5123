"""Tables of n-grams, counted on text."""

import random

import numpy as np
import pytest
from moa_shared.drafting.guesses import NgramTable
from moa_shared.errors import DataError
from moa_training.data.shards import TokenRow
from moa_training.fit.ngrams import build_ngrams
from moa_training.settings import NgramOptions


def text(chance: random.Random, length: int = 60) -> TokenRow:
    """After 1 mostly comes 2, after 2 mostly 3 or 4 by what stood before; the rest is noise."""
    ids = [1]
    while len(ids) < length:
        if ids[-1] == 1:
            ids.append(2 if chance.random() < 0.9 else 5)
        elif ids[-1] == 2:
            ids.append(3 if len(ids) > 1 and ids[-2] == 1 else 4)
        else:
            ids.append(chance.choice([1, 1, 2, 5, 6, 7]))
    return TokenRow(ids, [(1, length)])


ROWS = [text(random.Random(seed)) for seed in range(80)]


def test_the_chances_are_those_of_the_text() -> None:
    learned = NgramTable(**build_ngrams(ROWS, NgramOptions()))
    (token, log_chance), *_ = learned.after([9, 9, 1])
    assert token == 2
    assert 0.8 < np.exp(log_chance) < 0.97
    assert (learned.after([9, 1, 2])[0][0], learned.after([9, 5, 2])[0][0]) == (3, 4)
    unseen, right, promised = [text(random.Random(seed)) for seed in range(1000, 1040)], 0, 0.0
    for row in unseen:
        for place in range(1, len(row.ids)):
            for token, log_chance in learned.after(row.ids[max(0, place - 3) : place]):
                promised += float(np.exp(log_chance))
                right += row.ids[place] == token
    assert 0.9 < right / promised < 1.1


def test_rare_contexts_and_unlikely_tokens_are_left_out() -> None:
    few = build_ngrams(ROWS, NgramOptions(least_count=200, least_chance=0.5))
    assert 0 < len(few["contexts"]) < len(build_ngrams(ROWS, NgramOptions())["contexts"])
    assert few["chances"].min() >= 127
    with pytest.raises(DataError, match="No context occurs 10000 times"):
        build_ngrams(ROWS[:1], NgramOptions(least_count=10_000))
