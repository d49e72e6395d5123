"""When a drafter is dropped for look-up, and when not."""

from __future__ import annotations

import random

import pytest
from moa_shared.drafting.trial import RIGHT_SHARE, TRIAL_TOKENS, DrafterTrial, TrialResult

RIGHT, WRONG = 7, 8


def tried(tokens: int, right: float, looked_up: float, seed: int = 0) -> DrafterTrial:
    """The trial of a drafter that is right with a chance, whatever look-up says."""
    draw, trial = random.Random(seed), DrafterTrial()
    for _ in range(tokens):
        trial.add(RIGHT, RIGHT if draw.random() < right else WRONG, RIGHT if draw.random() < looked_up else None)
    return trial


def test_one_that_is_never_right_is_dropped_after_the_first_tokens() -> None:
    decided: list[DrafterTrial] = []
    trial = DrafterTrial(decided.append)
    for index in range(TRIAL_TOKENS + 50):
        assert trial.is_dropped == (index >= TRIAL_TOKENS)
        trial.add(RIGHT, WRONG, RIGHT if index % 10 == 0 else None)
    assert decided == [trial]
    assert trial.figures == "right in 0 of 200 tokens, what the text repeats in 20"


@pytest.mark.parametrize("looked_up", [0.0, 0.2, 0.95])
@pytest.mark.parametrize("right", [0.3, 0.6])
def test_a_good_one_stays_however_much_the_text_repeats(right: float, looked_up: float) -> None:
    for seed in range(20):
        assert tried(TRIAL_TOKENS, right, looked_up, seed).result is TrialResult.KEPT


def test_chance_drops_nobody() -> None:
    """One as poor as look-up is tried on; it is the difference that counts, not the number of tries."""
    for seed in range(20):
        assert tried(TRIAL_TOKENS, 0.03, 0.0, seed).is_open
    trial = DrafterTrial()
    for index in range(TRIAL_TOKENS):
        trial.add(RIGHT, WRONG if index > 2 else RIGHT, RIGHT if 10 < index < 17 else None)  # 3 and 6 right
    assert trial.is_open
    assert not trial.lacks_tokens


def test_a_decision_stands() -> None:
    trial = tried(TRIAL_TOKENS, 0.0, 0.5)
    assert trial.is_dropped
    for _ in range(TRIAL_TOKENS):
        trial.add(RIGHT, RIGHT, None)
    assert trial.is_dropped
    assert trial.tokens == TRIAL_TOKENS
    assert RIGHT_SHARE < 0.3  # of the poorest drafter that was measured
