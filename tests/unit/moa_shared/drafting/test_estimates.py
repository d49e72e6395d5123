"""Running estimates: usable before the first sample, within what was seen, and forgetful."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.drafting.estimates import AcceptanceEstimate, Smoothed, TreeAcceptance
from moa_shared.tree.draft_tree import DraftTree


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
