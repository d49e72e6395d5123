"""Losses: shares and bursts."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from netsim.core.conditions import Bernoulli, GilbertElliott, LossProcess


def test_no_loss_draws_nothing() -> None:
    random = Random(1)
    process = LossProcess(random)
    state = random.getstate()
    assert not process.lost(Bernoulli(0.0))
    assert random.getstate() == state


def test_certain_loss() -> None:
    process = LossProcess(Random(1))
    assert all(process.lost(Bernoulli(1.0)) for _ in range(100))


def test_gilbert_elliott_has_its_mean_and_its_bursts() -> None:
    spec = GilbertElliott(0.01, 0.2)
    assert spec.mean == pytest.approx(0.01 / 0.21)
    process = LossProcess(Random(2))
    outcomes = [process.lost(spec) for _ in range(200_000)]
    assert sum(outcomes) / len(outcomes) == pytest.approx(spec.mean, rel=0.06)
    bursts = sum(b and not a for a, b in pairwise(outcomes))
    # With every packet of the bad state lost, a burst lasts 1 / leave_bad packets.
    assert sum(outcomes) / bursts == pytest.approx(5.0, rel=0.06)
