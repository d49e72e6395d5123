"""Running estimates, and a drafter's trial."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting.estimates import (
    RIGHT_SHARE,
    TRIAL_TOKENS,
    AcceptanceEstimate,
    DrafterTrial,
    Smoothed,
    TreeAcceptance,
)
from moa_shared.tree import DraftTree


def test_the_first_sample_replaces_the_prior() -> None:
    estimate = Smoothed(20.0)
    assert estimate.mean == 20.0
    estimate.add(100.0)
    assert (estimate.mean, estimate.deviation, estimate.high) == (100.0, 50.0, 300.0)


@given(st.lists(st.floats(0, 1e4), min_size=1))
def test_a_mean_stays_within_its_samples(samples: list[float]) -> None:
    estimate = Smoothed()
    for sample in samples:
        estimate.add(sample)
    assert min(samples) - 1e-6 <= estimate.mean <= max(samples) + 1e-6


def test_a_mean_follows_a_change() -> None:
    estimate = Smoothed()
    for sample in [50.0] * 50 + [200.0] * 30:
        estimate.add(sample)
    assert estimate.mean == pytest.approx(200.0, rel=0.05)


@pytest.mark.parametrize("truth", [0.0, 0.35, 0.8, 1.0])
def test_an_acceptance_comes_near_the_truth(truth: float) -> None:
    estimate, chance = AcceptanceEstimate(), random.Random(1)
    for _ in range(400):
        estimate.add(chance.random() < truth)
    assert estimate.mean == pytest.approx(truth, abs=0.12)
    assert estimate.mean <= estimate.high <= 1.0


def test_what_is_not_seen_again_is_forgotten() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(50):
        estimate.add(False)
    low = estimate.high
    for _ in range(300):
        estimate.fade()
    assert low < 0.1
    assert estimate.mean == pytest.approx(0.5, abs=0.05)


def test_a_tree_teaches_what_each_rank_is_worth() -> None:
    acceptance = TreeAcceptance()
    tree = DraftTree((5, 6, 7), (-1, -1, 0))
    for _ in range(100):
        acceptance.learn(tree, [6, 9])  # always the second child; below it nothing was drafted
    assert acceptance.of_rank(0) < 0.05
    assert acceptance.of_rank(1) > 0.95
    assert acceptance.level.mean > 0.95
    assert acceptance.survival(tree) == pytest.approx(
        [acceptance.of_rank(0), acceptance.of_rank(1), acceptance.of_rank(0) ** 2]
    )


def test_nothing_drafted_teaches_nothing() -> None:
    acceptance = TreeAcceptance()
    acceptance.learn(DraftTree((), ()), [1, 2])
    assert acceptance.level.mean == 0.5


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
        assert bool(trial.is_dropped) == (index >= TRIAL_TOKENS)
        trial.add(RIGHT, WRONG, RIGHT if index % 10 == 0 else None)
    assert decided == [trial]
    assert trial.figures == "right in 0 of 200 tokens, what the text repeats in 20"


@pytest.mark.parametrize("looked_up", [0.0, 0.2, 0.95])
@pytest.mark.parametrize("right", [0.3, 0.6])
def test_a_good_one_stays_however_much_the_text_repeats(right: float, looked_up: float) -> None:
    for seed in range(20):
        assert tried(TRIAL_TOKENS, right, looked_up, seed).is_dropped is False


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
