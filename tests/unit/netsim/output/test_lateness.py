"""The histogram of lateness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from netsim.output.recorder import LatenessHistogram


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_quantiles_are_within_a_bucket(values: list[float], share: float) -> None:
    histogram = LatenessHistogram()
    for value in values:
        histogram.add(value)
    ordered = sorted(values)
    rank = next(i for i in range(len(ordered)) if (i + 1) / len(ordered) >= share - 1e-9)
    assert histogram.quantile_s(share) == pytest.approx(ordered[rank], rel=0.03, abs=2e-6)


@pytest.mark.parametrize(
    ("values", "flagged"),
    [([1e-4] * 100, False), ([4e-4] * 100, True), ([1e-4] * 97 + [6e-3] * 3, True), ([1e-4] * 995 + [6e-3] * 5, False)],
)
def test_flags(values: list[float], flagged: bool) -> None:
    histogram = LatenessHistogram()
    for value in values:
        histogram.add(value)
    assert histogram.summary().flagged is flagged


def test_nothing_counted_is_nothing_late() -> None:
    assert LatenessHistogram().summary() == (0, 0.0, 0.0, 0.0, False)
