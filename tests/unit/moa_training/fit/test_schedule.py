from __future__ import annotations

import pytest
from moa_training.fit.schedule import learning_rate
from moa_training.settings import OptimiserSettings

SETTINGS = OptimiserSettings(learning_rate=1e-3, final_learning_rate=1e-5, warmup_steps=10)


def test_warm_up_is_linear_and_the_end_is_the_final_rate() -> None:
    assert learning_rate(SETTINGS, 0, 0.0) == pytest.approx(1e-4)
    assert learning_rate(SETTINGS, 9, 0.0) == pytest.approx(1e-3)
    assert learning_rate(SETTINGS, 500, 0.5) == pytest.approx((1e-3 + 1e-5) / 2)
    assert learning_rate(SETTINGS, 1000, 1.0) == learning_rate(SETTINGS, 1001, 1.7) == pytest.approx(1e-5)


def test_the_rate_never_rises_after_the_warm_up() -> None:
    rates = [learning_rate(SETTINGS, 10 + step, step / 200) for step in range(201)]
    assert rates == sorted(rates, reverse=True)


def test_the_authors_schedule_ends_after_one_of_forty_epochs() -> None:
    authors = OptimiserSettings(learning_rate=6e-4, final_learning_rate=3e-5, warmup_steps=50, schedule="authors")
    assert learning_rate(authors, 60, 0.0) == pytest.approx(6e-4)
    assert learning_rate(authors, 60, 0.0125) == pytest.approx((6e-4 + 3e-5) / 2)
    assert learning_rate(authors, 60, 0.025) == learning_rate(authors, 60, 0.9) == pytest.approx(3e-5)
