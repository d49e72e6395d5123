"""How far a drafter's chances are trusted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_server.drafting.growth_rule import Calibration


def after(promised: float, right: int, times: int) -> Calibration:
    calibration = Calibration()
    for _ in range(times):
        calibration.add(promised, right)
    return calibration


def test_a_drafter_that_keeps_its_promises_is_trusted() -> None:
    assert Calibration().factor == 1.0
    assert after(1.0, 1, 50).factor == pytest.approx(1.0)
    assert after(0.5, 1, 50).factor == 1.0


def test_one_that_promises_twice_what_it_gives_is_half_trusted() -> None:
    assert after(2.0, 1, 200).factor == pytest.approx(0.5, abs=0.02)


def test_one_that_is_never_right_is_soon_trusted_little_and_tried_again_later() -> None:
    calibration = after(1.0, 0, 10)
    assert calibration.factor < 0.2
    for _ in range(300):
        calibration.fade()
    assert calibration.factor > 0.9


@given(st.lists(st.tuples(st.floats(0, 60), st.integers(0, 20))), st.floats(0, 1))
def test_the_factor_is_a_share(samples: list[tuple[float, int]], prior: float) -> None:
    calibration = Calibration(prior)
    for promised, right in samples:
        calibration.add(promised, right)
    assert 0.0 <= calibration.factor <= 1.0
