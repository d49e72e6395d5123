"""What a companion's chances are worth, learnt from what the target decides."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting.confidence import chance_of
from moa_shared.drafting.learned_confidence import MOST_EVIDENCE, PRIOR_EVIDENCE, LearnedConfidence
from moa_shared.drafting.written import TokenOrigin, WrittenToken


def tell(confidence: LearnedConfidence, shift: float, count: int, seed: int = 0) -> None:
    """Tokens of a target whose choices are as likely as this shift says."""
    chance, truth = random.Random(seed), LearnedConfidence(shift, 1.0)
    for _ in range(count):
        stated = chance.random()
        confidence.learn(stated, right=chance.random() < truth.corrected(stated))


@pytest.mark.parametrize("shift", [-1.0, 0.2, 1.7, 3.5])
def test_it_learns_how_much_more_or_less_is_right_than_was_stated(shift: float) -> None:
    learned = LearnedConfidence(0.5, PRIOR_EVIDENCE)
    tell(learned, shift, 400)
    assert learned.shift == pytest.approx(shift, abs=0.4)


def test_what_is_long_past_counts_for_less_than_what_came_last() -> None:
    learned = LearnedConfidence(0.5, PRIOR_EVIDENCE)
    tell(learned, 3.0, 5000)
    assert learned.evidence == MOST_EVIDENCE
    tell(learned, 0.0, 1500, seed=1)
    assert learned.shift == pytest.approx(0.0, abs=0.4)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=60), st.lists(st.floats(0, 1), min_size=2))
def test_a_greater_chance_is_never_worth_less(tokens: list[tuple[float, bool]], chances: list[float]) -> None:
    learned = LearnedConfidence(0.5, PRIOR_EVIDENCE)
    for stated, right in tokens:
        learned.learn(stated, right=right)
    worth = [learned.corrected(chance) for chance in sorted(chances)]
    assert worth == sorted(worth)
    assert all(0 < each < 1 for each in worth)


def test_it_says_what_the_chance_of_a_token_is_worth() -> None:
    written = WrittenToken(3, math.log(0.5), TokenOrigin.DRAFTER)
    assert chance_of(written, LearnedConfidence(0.0, 1.0)) == pytest.approx(0.5)
    assert chance_of(written, LearnedConfidence(math.log(9.0), 1.0)) == pytest.approx(0.9)
