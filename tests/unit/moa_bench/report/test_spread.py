"""Medians, quartiles and paired ratios."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_bench.report.spread import Spread, paired_ratio
from moa_shared.errors import InternalError


def test_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0, 5)
    assert Spread.of([2.0]).text() == "2.0 (2.0 to 2.0)"


@given(st.lists(st.floats(0.1, 1e6), min_size=1))
def test_the_median_lies_between_the_quartiles(values: list[float]) -> None:
    spread = Spread.of(values)
    assert min(values) - 1e-3 <= spread.low <= spread.median <= spread.high <= max(values) + 1e-3


def test_ratios_are_of_pairs() -> None:
    # Both halves of the last pair were disturbed alike: the ratio does not see it, medians of sums would.
    assert paired_ratio([2.0, 2.0, 200.0], [1.0, 1.0, 100.0]) == Spread(2.0, 2.0, 2.0, 3)


def test_nothing_to_describe_is_an_error() -> None:
    with pytest.raises(InternalError, match="no measurements"):
        Spread.of([])
    with pytest.raises(InternalError, match="2 measurements cannot be paired with 1"):
        paired_ratio([1.0, 2.0], [1.0])
